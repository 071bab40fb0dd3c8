"""Sums of a VM's trace by epoch and operation, from files that the recorder wrote."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.pipeline import sums
from analysis.pipeline.merge import read_trace, read_whole_files
from analysis.pipeline.sums import sums_of, trace_files
from experiments.pipeline.trace import Recorder, TraceBuffer
from experiments.pipeline.trace_format import FIRST_RECORD, NO_CPU, NO_NUMBER, RECORD, Code, Header
from metrics.records import NO_EPOCH, EpochRecord, InputBatchRecord, InputOpRecord, InputTraceRecord

REAL_S = 1_800_000_000  # at the monotonic time 0
MS = 1_000_000


def epoch(number: int, began_s: float, ended_s: float, vm: str = "eu-0") -> EpochRecord:
    """An epoch `began_s` after REAL_S."""
    return EpochRecord(
        vm=vm, epoch=number, began_s=REAL_S + began_s, ended_s=REAL_S + ended_s, steps=1, samples=1, load_s=0.1, move_s=0,
        forward_s=0, backward_s=0, optimizer_local_s=0, optimizer_sync_s=1, other_s=0, calc_s=1, comm_s=1, loss=1.0,
        group_size=1, dropped="", ran="",
    )  # fmt: skip


EPOCHS = (epoch(1, 1, 2), epoch(2, 2, 4))


def buffer(folder: Path, name: str, records: int = 100) -> TraceBuffer:
    folder.mkdir(exist_ok=True)
    tid = len(list(folder.iterdir())) + 1
    return TraceBuffer(
        folder / f"{name}.trace", Header("another", 7, tid, name, 0, REAL_S * 1000 * MS, records)
    )


def op(to: TraceBuffer, name: str, at_ms: int, wall_ms: int, cpu_ms: int | None = 1, size: int = 10) -> None:
    to.event(
        Code.OP, at_ms * MS, wall_ms * MS, name=to.name_id(name), size=size, cpu_ns=NO_CPU if cpu_ms is None else cpu_ms * MS
    )  # fmt: skip


def batch(
    worker: TraceBuffer, consumer: TraceBuffer, number: int, at_ms: int, *, arrived_ms: int, wait_ms: int
) -> None:
    """A batch fetched in 20 ms and collated in 5; the training asks for it 30 ms after the start of the fetch."""
    worker.event(Code.FETCH, at_ms * MS, 20 * MS, batch=number, sample=8)
    worker.event(Code.COLLATE, (at_ms + 20) * MS, 5 * MS, batch=number)
    consumer.event(Code.ARRIVED, arrived_ms * MS, 0, batch=number)
    consumer.event(Code.WAIT, (at_ms + 30) * MS, wait_ms * MS, batch=number)


def test_operations_are_added_up_by_the_epoch_in_which_they_began(tmp_path: Path):
    one, other = buffer(tmp_path, "one"), buffer(tmp_path, "other")
    op(one, "decode", 500, 3)  # before the first epoch
    op(one, "decode", 1000, 10, cpu_ms=4)  # at the begin of an epoch
    op(one, "crop", 1010, 2, size=NO_NUMBER)
    op(other, "crop", 1999, 500, cpu_ms=None)  # ends in the next one
    op(other, "decode", 1500, 20, cpu_ms=6, size=30)
    op(other, "decode", 2000, 7)  # at the end of an epoch, which is the begin of the next one
    op(other, "decode", 4000, 1)  # after the last epoch
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS)
    assert found.problems == ()
    assert found.trace == InputTraceRecord("eu-0", 2, 0, 0)
    assert found.ops == (
        InputOpRecord("eu-0", NO_EPOCH, "decode", 2, 0.004, 0.002, 20),
        InputOpRecord("eu-0", 1, "decode", 2, 0.030, 0.010, 40),
        InputOpRecord("eu-0", 1, "crop", 2, 0.502, None, None),
        InputOpRecord("eu-0", 2, "decode", 1, 0.007, 0.001, 10),
    )


def test_batches_are_added_up_by_the_epoch_in_which_the_training_used_them(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    batch(worker, consumer, 0, 1000, arrived_ms=1026, wait_ms=2)
    batch(worker, consumer, 1, 1100, arrived_ms=1131, wait_ms=1)
    batch(worker, consumer, 2, 1960, arrived_ms=1127, wait_ms=10)  # received at the begin of epoch 2
    worker.event(Code.FETCH, 2500 * MS, 20 * MS, batch=3, sample=8)  # never received
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS).batches
    # Delay: from the end of the collation, 25 ms after the start, to the end of the wait.
    assert found == (
        InputBatchRecord("eu-0", 1, 2, 16, 0.040, 0.010, 0.003, pytest.approx(0.013), 0, 0),
        InputBatchRecord("eu-0", 2, 1, 8, 0.020, 0.005, 0.010, pytest.approx(0.015), 1, 0),
    )


def test_a_batch_received_just_before_its_epoch_counts_by_its_use(tmp_path: Path):
    """Clocks of the VM and of the swarm differ by 5 ms."""
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    batch(worker, consumer, 0, 1963, arrived_ms=1988, wait_ms=2)
    consumer.event(Code.CONSUMED, 1995 * MS, 100 * MS, batch=0)
    (found,) = sums_of(trace_files(tmp_path), "eu-0", EPOCHS).batches
    assert found.epoch == 2


def test_a_sum_with_an_unknown_part_is_unknown(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    batch(worker, consumer, 0, 1000, arrived_ms=1026, wait_ms=2)
    consumer.event(Code.WAIT, 1200 * MS, 3 * MS, batch=1)
    (found,) = sums_of(trace_files(tmp_path), "eu-0", EPOCHS).batches
    assert found == InputBatchRecord("eu-0", 1, 2, None, None, None, 0.005, None, 0, 0)


def test_epochs_from_a_full_buffer_on_are_incomplete(tmp_path: Path):
    worker, consumer = buffer(tmp_path, "worker"), buffer(tmp_path, "consumer")
    for number, at_ms in enumerate((1000, 2100)):
        batch(worker, consumer, number, at_ms, arrived_ms=at_ms + 26, wait_ms=2)
    full = buffer(tmp_path, "full", records=2)
    for at_ms in (2200, 2300, 2400, 2500, 2600):
        op(full, "decode", at_ms, 1)
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS)
    assert [(row.epoch, row.dropped) for row in found.batches] == [(1, 0), (2, None)]
    assert found.trace.dropped == 3
    assert [row.n for row in found.ops] == [2]


def test_damaged_and_cut_files_are_named_and_the_others_count(tmp_path: Path):
    for name in ("good", "cut", "damaged", "clocks", "stump", "unnamed"):
        op(buffer(tmp_path, name), "decode", 1000, 1)
    cut = tmp_path / "cut.trace"
    cut.write_bytes(cut.read_bytes()[: FIRST_RECORD + RECORD.size + 5])
    for name, at, value in (
        ("damaged", FIRST_RECORD + RECORD.size - 2, b"\x63"),  # a code that is none
        ("unnamed", FIRST_RECORD + RECORD.size - 4, b"\x09\x00"),  # a name that is none
        ("clocks", 8 + 4 + 4 + 3 * 8, b"\xff" * 8),
    ):
        data = bytearray((tmp_path / f"{name}.trace").read_bytes())
        data[at : at + len(value)] = value
        (tmp_path / f"{name}.trace").write_bytes(data)
    (tmp_path / "stump.trace").write_bytes(b"orchtrc1")
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS)
    assert found.trace == InputTraceRecord("eu-0", 6, 5, 0)
    assert [row.n for row in found.ops] == [2]  # of the good and of the cut one
    assert len(found.problems) == 5
    for name in ("cut", "damaged", "clocks", "stump", "unnamed"):
        assert sum(f"{name}.trace: " in problem for problem in found.problems) == 1


def test_too_large_a_trace_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a", "b"):
        op(buffer(tmp_path, name), "decode", 1000, 1)
    size = (tmp_path / "a.trace").stat().st_size
    monkeypatch.setattr(sums, "MOST_BYTES", size + 10)
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS)
    assert (found.trace.damaged, [row.n for row in found.ops]) == (1, [1])
    monkeypatch.setattr(sums, "LARGEST_BYTES", size - 1)
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS)
    assert (found.trace.damaged, found.ops) == (2, ())
    assert f"has at most {size - 1} bytes" in found.problems[0]


def test_two_consumers_cost_the_batches_only(tmp_path: Path):
    for pid in (7, 8):
        path = tmp_path / f"{pid}.trace"
        consumer = TraceBuffer(path, Header("x", pid, pid, "", 0, REAL_S * 1000 * MS, 100))
        consumer.event(Code.WAIT, 1000 * MS, MS, batch=0)
        op(consumer, "decode", 1000, 1)
    found = sums_of(trace_files(tmp_path), "eu-0", EPOCHS)
    assert (found.batches, [row.n for row in found.ops]) == ((), [2])
    assert "two consumers" in found.problems[0]


_OPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5000), st.integers(0, 900), st.integers(0, 2**32 - 2)), max_size=30
)  # fmt: skip


@settings(max_examples=40)
@given(files=st.lists(_OPS, min_size=1, max_size=3))
def test_the_sums_are_those_of_the_merged_records(files, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("trace")
    for number, ops in enumerate(files):
        to = buffer(folder, str(number))
        for name, at_ms, wall_ms, size in ops:
            op(to, name, at_ms, wall_ms, size=size)
    n, wall_ns, sizes = Counter[tuple[str, int]](), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for record in read_trace(folder).ops:
        at_s = record.start_ns / 1e9
        key = record.op, next((e.epoch for e in EPOCHS if e.began_s <= at_s < e.ended_s), NO_EPOCH)
        n[key] += 1
        wall_ns[key] += record.wall_ns
        sizes[key] += record.bytes_out or 0
    found = sums_of(trace_files(folder), "eu-0", reversed(EPOCHS)).ops
    assert {(row.op, row.epoch): row.n for row in found} == n
    assert {(row.op, row.epoch): row.bytes_out for row in found} == {key: sizes[key] for key in n}
    assert {(row.op, row.epoch): row.wall_s for row in found} == {key: wall_ns[key] / 1e9 for key in n}


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
    found = sums_of([file], "eu-0", EPOCHS)
    assert found.trace.files == 1
    assert all(0 < row.n <= 4 and row.wall_s >= 0 for row in found.ops)


def test_the_recorder_s_own_clock_falls_in_the_epoch(tmp_path: Path):
    recorder = Recorder(tmp_path, vm="other", records=10)
    to = recorder.buffer()
    to.mark()
    to.op(to.name_id("decode"), -1, 0, 5)
    now_s = time.time() - REAL_S
    (row,) = sums_of(trace_files(tmp_path), "eu-0", [epoch(4, now_s - 60, now_s + 60)]).ops
    assert (row.vm, row.epoch, row.op, row.n, row.bytes_out) == ("eu-0", 4, "decode", 1, 5)


def test_files_of_a_run_are_read_without_the_damaged_ones(tmp_path: Path):
    op(buffer(tmp_path, "good"), "decode", 1000, 1)
    (tmp_path / "bad.trace").write_bytes(b"no trace")
    trace = read_whole_files(tmp_path)
    assert trace is not None
    assert len(trace.ops) == 1
    assert read_whole_files(tmp_path / "nothing") is None
