"""Sums of a VM's trace by epoch and operation, from files that the recorder writes meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rig import EPOCHS, MS, REAL_S, batch, buffer, epoch, op

from analysis.pipeline.merge import read_trace, read_whole_files
from experiments.pipeline.trace import Recorder
from experiments.pipeline.trace_format import FIRST_RECORD, NO_NUMBER, RECORD, Code
from experiments.pipeline.trace_sums import TraceSums, row_key
from metrics.records import NO_EPOCH, InputBatchRecord, InputOpRecord, InputTraceRecord


class Found:
    """The rows of a whole trace, by kind."""

    def __init__(self, folder: Path) -> None:
        rows = TraceSums(folder, "eu-0").finish(EPOCHS)
        self.ops = [row for row in rows if isinstance(row, InputOpRecord)]
        self.batches = [row for row in rows if isinstance(row, InputBatchRecord)]
        self.traces = [row for row in rows if isinstance(row, InputTraceRecord)]


def test_operations_are_added_up_by_the_epoch_in_which_they_began(tmp_path: Path):
    one, other = buffer(tmp_path, "one"), buffer(tmp_path, "other")
    op(one, "decode", 500, 3)  # before the first epoch
    op(one, "decode", 1000, 10, cpu_ms=4)  # at the begin of an epoch
    op(one, "crop", 1010, 2, size=NO_NUMBER)
    op(other, "crop", 1999, 500, cpu_ms=None)  # ends in the next one
    op(other, "decode", 1500, 20, cpu_ms=6, size=30)
    op(other, "decode", 2000, 7)  # at the end of an epoch, which is the begin of the next one
    op(other, "decode", 4000, 1)  # after the last epoch
    found = Found(tmp_path)
    assert found.traces == [InputTraceRecord("eu-0", 2, 0, 0)]
    assert found.ops == [
        InputOpRecord("eu-0", NO_EPOCH, "decode", 2, 0.004, 0.002, 20),
        InputOpRecord("eu-0", 1, "decode", 2, 0.030, 0.010, 40),
        InputOpRecord("eu-0", 1, "crop", 2, 0.502, None, None),
        InputOpRecord("eu-0", 2, "decode", 1, 0.007, 0.001, 10),
    ]


def test_batches_are_added_up_by_the_epoch_in_which_the_training_used_them(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    batch(worker, consumer, 0, 1000, arrived_ms=1026, wait_ms=2)
    batch(worker, consumer, 1, 1100, arrived_ms=1131, wait_ms=1)
    batch(worker, consumer, 2, 1960, arrived_ms=1127, wait_ms=10)  # received at the begin of epoch 2
    worker.event(Code.FETCH, 2500 * MS, 20 * MS, batch=3, sample=8)  # never received
    # Delay: from the end of the collation, 25 ms after the start, to the end of the wait.
    assert Found(tmp_path).batches == [
        InputBatchRecord("eu-0", 1, 2, 16, 0.040, 0.010, 0.003, 0.013, 0, 0),
        InputBatchRecord("eu-0", 2, 1, 8, 0.020, 0.005, 0.010, 0.015, 1, 0),
    ]


def test_a_batch_received_just_before_its_epoch_counts_by_its_use(tmp_path: Path):
    """Clocks of the VM and of the swarm differ by 5 ms."""
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    batch(worker, consumer, 0, 1963, arrived_ms=1988, wait_ms=2)
    consumer.event(Code.CONSUMED, 1995 * MS, 100 * MS, batch=0)
    (found,) = Found(tmp_path).batches
    assert found.epoch == 2


def test_a_sum_with_an_unknown_part_is_unknown(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    batch(worker, consumer, 0, 1000, arrived_ms=1026, wait_ms=2)
    consumer.event(Code.WAIT, 1200 * MS, 3 * MS, batch=1)
    (found,) = Found(tmp_path).batches
    assert found == InputBatchRecord("eu-0", 1, 2, None, None, None, 0.005, None, 0, 0)


def test_epochs_from_a_full_buffer_on_are_incomplete(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    for number, at_ms in enumerate((1000, 2100)):
        batch(worker, consumer, number, at_ms, arrived_ms=at_ms + 26, wait_ms=2)
    full = buffer(tmp_path, "full", records=2)
    for at_ms in (2200, 2300, 2400, 2500, 2600):
        op(full, "decode", at_ms, 1)
    found = Found(tmp_path)
    assert [(row.epoch, row.dropped) for row in found.batches] == [(1, 0), (2, None)]
    assert found.traces[0].dropped == 3
    assert [row.n for row in found.ops] == [2]


def test_sums_of_an_ended_epoch_are_there_while_the_trace_goes_on(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    sums = TraceSums(tmp_path, "eu-0")
    op(worker, "decode", 1000, 3)
    batch(worker, consumer, 0, 1000, arrived_ms=1026, wait_ms=2)
    consumer.event(Code.CONSUMED, 1032 * MS, 68 * MS, batch=0)
    batch(worker, consumer, 1, 1900, arrived_ms=1926, wait_ms=2)  # its use has not ended
    op(worker, "decode", 2100, 3)  # of the next epoch
    trace, first = InputTraceRecord("eu-0", 2, 0, 0), InputOpRecord("eu-0", 1, "decode", 1, 0.003, 0.001, 10)
    assert sums.update(EPOCHS[:1]) == [
        first,
        InputBatchRecord("eu-0", 1, 1, 8, 0.020, 0.005, 0.002, 0.007, 0, 0),
        trace,
    ]
    assert sums.update(()) == []
    consumer.event(Code.CONSUMED, 1932 * MS, 100 * MS, batch=1)
    assert sums.update(EPOCHS[1:]) == [
        InputOpRecord("eu-0", 2, "decode", 1, 0.003, 0.001, 10),
        InputBatchRecord("eu-0", 1, 2, 16, 0.040, 0.010, 0.004, 0.014, 0, 0),
    ]
    assert sums.finish() == []


def test_a_batch_of_which_events_were_dropped_does_not_wait_for_them(tmp_path: Path):
    consumer, sums = buffer(tmp_path, "consumer"), TraceSums(tmp_path, "eu-0")
    consumer.event(Code.WAIT, 1000 * MS, 3 * MS, batch=0)
    consumer.event(Code.CONSUMED, 1003 * MS, 3 * MS, batch=0)
    assert sums.update(EPOCHS[:1]) == [InputTraceRecord("eu-0", 1, 0, 0)]
    assert sums.update(EPOCHS[1:]) == [InputBatchRecord("eu-0", 1, 1, None, None, None, 0.003, None, None, 0)]


def test_damaged_files_count_until_there(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for name in ("good", "code", "unnamed", "foreign", "clocks"):
        op(buffer(tmp_path, name), "decode", 1000, 1)
    for name, at, value in (
        ("code", FIRST_RECORD + RECORD.size - 2, b"\x63"),  # a code that is none
        ("unnamed", FIRST_RECORD + RECORD.size - 4, b"\x09\x00"),  # a name that is none
        ("foreign", 0, b"anything"),
        ("clocks", 8 + 4 + 4 + 3 * 8, b"\xff" * 8),
    ):
        data = bytearray((tmp_path / f"{name}.trace").read_bytes())
        data[at : at + len(value)] = value
        (tmp_path / f"{name}.trace").write_bytes(data)
    found = Found(tmp_path)
    assert found.traces == [InputTraceRecord("eu-0", 5, 4, 0)]
    assert [row.n for row in found.ops] == [1]
    for name in ("code", "unnamed", "foreign", "clocks"):
        assert f"{name}.trace" in caplog.text


def test_a_removed_file_costs_its_own_later_records_only(tmp_path: Path):
    one, other = buffer(tmp_path, "one"), buffer(tmp_path, "other")
    sums = TraceSums(tmp_path, "eu-0")
    op(one, "decode", 1000, 1)
    op(other, "crop", 1000, 1)
    assert len(sums.update(EPOCHS[:1])) == 3
    (tmp_path / "one.trace").unlink()
    op(other, "crop", 2000, 1)
    assert sums.update(EPOCHS[1:]) == [
        InputOpRecord("eu-0", 2, "crop", 1, 0.001, 0.001, 10),
        InputTraceRecord("eu-0", 2, 1, 0),
    ]


def test_a_file_without_its_header_is_read_when_it_has_one(tmp_path: Path):
    path, sums = tmp_path / "a.trace", TraceSums(tmp_path, "eu-0")
    path.write_bytes(bytes(FIRST_RECORD + 10 * RECORD.size))
    assert sums.update(EPOCHS[:1]) == [InputTraceRecord("eu-0", 1, 0, 0)]
    path.unlink()
    op(buffer(tmp_path, "a"), "decode", 1000, 1)
    assert sums.update(EPOCHS[1:]) == [InputOpRecord("eu-0", 1, "decode", 1, 0.001, 0.001, 10)]


_OPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5000), st.integers(0, 900), st.integers(0, 2**32 - 2)), max_size=30
)  # fmt: skip


@settings(max_examples=40)
@given(files=st.lists(_OPS, min_size=1, max_size=3), read_after=st.integers(0, 30))
def test_the_sums_are_those_of_the_merged_records(
    files, read_after: int, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("trace")
    sums, found = TraceSums(folder, "eu-0"), {}
    for number, ops in enumerate(files):
        to = buffer(folder, str(number))
        for done, (name, at_ms, wall_ms, size) in enumerate(ops):
            if done == read_after:
                found |= {row_key(row): row for row in sums.update(())}
            op(to, name, at_ms, wall_ms, size=size)
    for ended in EPOCHS:
        found |= {row_key(row): row for row in sums.update([ended])}
    found |= {row_key(row): row for row in sums.finish()}
    n, wall_ns, sizes = Counter[tuple[str, int]](), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for record in read_trace(folder).ops:
        at_s = record.start_ns / 1e9
        key = record.op, next((e.epoch for e in EPOCHS if e.began_s <= at_s < e.ended_s), NO_EPOCH)
        n[key] += 1
        wall_ns[key] += record.wall_ns
        sizes[key] += record.bytes_out or 0
    ops = [row for row in found.values() if isinstance(row, InputOpRecord)]
    assert {(row.op, row.epoch): row.n for row in ops} == n
    assert {(row.op, row.epoch): row.bytes_out for row in ops} == {key: sizes[key] for key in n}
    assert {(row.op, row.epoch): row.wall_s for row in ops} == {key: wall_ns[key] / 1e9 for key in n}


@settings(max_examples=60)
@given(data=st.data())
def test_no_content_of_a_file_raises(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("trace")
    to = buffer(folder, "file", records=4)
    for at_ms in (1000, 1100, 1200):
        op(to, "decode", at_ms, 1)
    file = folder / "file.trace"
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        places = st.integers(0, 255) | st.integers(FIRST_RECORD, len(content) - 8)
        at = data.draw(places)
        content[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    found = Found(folder)
    assert found.traces[0].files == 1
    assert all(0 < row.n <= 4 and row.wall_s >= 0 for row in found.ops)


def test_the_recorder_s_own_clock_falls_in_the_epoch(tmp_path: Path):
    recorder = Recorder(tmp_path, vm="other", records=10)
    to = recorder.buffer()
    to.mark()
    to.op(to.name_id("decode"), -1, 0, 5)
    now_s = time.time() - REAL_S
    row, _ = TraceSums(tmp_path, "eu-0").finish([epoch(4, now_s - 60, now_s + 60)])
    assert isinstance(row, InputOpRecord)
    assert (row.vm, row.epoch, row.op, row.n, row.bytes_out) == ("eu-0", 4, "decode", 1, 5)


def test_files_of_a_run_are_read_without_the_damaged_ones(tmp_path: Path):
    op(buffer(tmp_path, "good"), "decode", 1000, 1)
    (tmp_path / "bad.trace").write_bytes(b"no trace")
    trace = read_whole_files(tmp_path)
    assert trace is not None
    assert len(trace.ops) == 1
    assert read_whole_files(tmp_path / "nothing") is None
