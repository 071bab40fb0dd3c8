"""The recorder of traces and its files."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from experiments.pipeline.trace import Recorder, TraceBuffer, TraceError, size_of
from experiments.pipeline.trace_format import (
    FIRST_RECORD,
    NO_BATCH,
    NO_NUMBER,
    RECORD,
    Code,
    Event,
    Header,
    TraceFileError,
    read_thread,
)


def read(folder: Path):
    return [read_thread(file.read_bytes(), file.name) for file in sorted(folder.iterdir())]


def test_a_sample_of_five_operations_takes_200_bytes(tmp_path: Path):
    assert 5 * RECORD.size == 200
    buffer = Recorder(tmp_path, vm="a", records=10).buffer()
    file = next(tmp_path.iterdir())
    assert file.stat().st_size == FIRST_RECORD + 10 * RECORD.size
    buffer.mark()
    for name in ("decode", "crop", "flip", "to_array", "label"):
        buffer.op(buffer.name_id(name), 3, 7, 11)
    assert file.read_bytes()[FIRST_RECORD + 200 :].strip(b"\0") == b""


def test_operations_follow_each_other_without_a_gap(tmp_path: Path):
    recorder = Recorder(tmp_path, vm="a")
    buffer = recorder.buffer()
    assert recorder.buffer() is buffer
    before = time.monotonic_ns()
    buffer.mark()
    time.sleep(0.02)
    buffer.op(buffer.name_id("sleep"), 0, 5, 100)
    spun = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < spun:
        pass
    buffer.op(buffer.name_id("spin"), NO_BATCH, NO_NUMBER, NO_NUMBER)
    (thread,) = read(tmp_path)
    sleep, spin = thread.events
    assert (sleep.name, sleep.batch, sleep.sample, sleep.bytes_out) == ("sleep", 0, 5, 100)
    assert (spin.name, spin.batch, spin.sample, spin.bytes_out) == ("spin", None, None, None)
    assert before <= sleep.start_ns
    assert sleep.start_ns + sleep.wall_ns == spin.start_ns
    assert sleep.wall_ns >= 20_000_000 > (sleep.cpu_ns or 0) * 2  # sleeping takes no CPU time
    assert spin.wall_ns >= (spin.cpu_ns or 0) - 1_000_000 >= 19_000_000
    assert thread.header.tid == threading.get_native_id()


def test_a_full_buffer_drops_and_counts(tmp_path: Path):
    buffer = Recorder(tmp_path, vm="a", records=3).buffer()
    for number in range(5):
        buffer.event(Code.WAIT, number, 1, batch=number)
    buffer.mark()
    buffer.op(buffer.name_id("late"), 0, 0, 0)
    (thread,) = read(tmp_path)
    assert [event.batch for event in thread.events] == [0, 1, 2]
    assert thread.header.dropped == 3


def test_each_thread_has_a_buffer(tmp_path: Path):
    recorder = Recorder(tmp_path, vm="a")

    def record(number: int) -> None:
        recorder.buffer().event(Code.FETCH, number, 1, batch=number)

    threads = [threading.Thread(target=record, args=(i,), name=f"worker {i}") for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(tmp_path)
    assert sorted(t.header.thread for t in found) == ["worker 0", "worker 1", "worker 2"]
    assert sorted(event.batch or 0 for t in found for event in t.events) == [0, 1, 2]


_FORK = """
import os, pathlib, sys
from experiments.pipeline.trace import Recorder
from experiments.pipeline.trace_format import Code
recorder = Recorder(pathlib.Path(sys.argv[1]), vm="a")
recorder.buffer().event(Code.FETCH, 1, 2, batch=8)
child = os.fork()
if child == 0:
    recorder.buffer().event(Code.FETCH, 1, 2, batch=9)
    os._exit(0)
os.waitpid(child, 0)
print(child)
"""


def test_a_forked_process_has_a_buffer_of_its_own(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", _FORK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = {t.header.pid: [event.batch for event in t.events] for t in read(tmp_path)}
    assert sorted(found.values()) == [[8], [9]]
    assert found[int(done.stdout)] == [9]


def test_a_recorder_can_be_sent_to_a_process(tmp_path: Path):
    recorder = Recorder(tmp_path, vm="a", records=7)
    recorder.buffer()
    copy = pickle.loads(pickle.dumps(recorder))
    assert (copy.folder, copy.vm, copy.records) == (recorder.folder, "a", 7)
    copy.buffer()
    assert len(list(tmp_path.iterdir())) == 2


def test_bad_input_is_refused_in_a_sentence(tmp_path: Path):
    with pytest.raises(TraceError, match="needs space for 1 record"):
        Recorder(tmp_path, records=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="a trace cannot be written there"):
        Recorder(tmp_path / "file")
    full = Header("a", 1, 2, "t", 0, 0, 2**50)
    with pytest.raises(TraceError, match="fewer records a thread"):
        TraceBuffer(tmp_path / "full.trace", full)
    assert not (tmp_path / "full.trace").exists()
    buffer = Recorder(tmp_path / "names", vm="a").buffer()
    with pytest.raises(TraceError, match="use fewer or shorter ones"):
        buffer.name_id("x" * 5000)


def test_a_recorder_that_is_not_strict_records_nothing_where_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    recorder = pickle.loads(pickle.dumps(Recorder(tmp_path, vm="a", records=2**50, strict=False)))
    buffer = recorder.buffer()
    assert "nothing is traced in thread" in caplog.text
    buffer.mark()
    buffer.op(buffer.name_id("x"), 0, 0, 1)
    buffer.event(Code.COLLATE, 0, 1)
    assert recorder.buffer() is buffer
    assert list(tmp_path.iterdir()) == []


def test_long_names_of_vms_stay_different(tmp_path: Path):
    long = "x" * 130
    for name in (f"{long}-0", f"{long}-1", "y" * 128):
        Recorder(tmp_path / name[-3:], vm=name).buffer()
    found = {read_thread(path.read_bytes(), "f").header.vm for path in tmp_path.rglob("*.trace")}
    assert len(found) == 3
    assert "y" * 128 in found
    assert all(len(name) <= 128 for name in found)


def test_files_that_are_no_traces_are_refused(tmp_path: Path):
    buffer = Recorder(tmp_path, vm="a", records=2).buffer()
    buffer.event(Code.PHASE, 1, 1, name=5)  # a name that was not written
    file = next(tmp_path.iterdir())
    with pytest.raises(TraceFileError, match=f"{file.name}: a record is damaged"):
        read_thread(file.read_bytes(), file.name)
    for data in (b"", b"orchtrc1", b"x" * 10_000):
        with pytest.raises(TraceFileError, match=r"x\.trace: this is not a trace"):
            read_thread(data, "x.trace")
    other = bytearray(file.read_bytes())
    other[8] = 48
    with pytest.raises(TraceFileError, match="records have 48 bytes"):
        read_thread(bytes(other), "x.trace")


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=15)
EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from([code for code in Code if code not in (Code.UNUSED, Code.OP, Code.PHASE)]),
        st.just(""),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.none() | st.integers(0, 2**63 - 1),
        st.none() | st.integers(0, 2**31 - 1),
        st.none() | st.integers(0, NO_NUMBER - 1),
        st.none() | st.integers(0, NO_NUMBER - 1),
    ),
    max_size=8,
)


@given(EVENTS, TEXT, TEXT, st.integers(1, 2**40))
def test_what_is_written_is_read(tmp_path_factory, events: list[Event], vm: str, thread: str, pid: int):
    path = tmp_path_factory.mktemp("trace") / "1.trace"
    buffer = TraceBuffer(path, Header(vm, pid, 3, thread, 10, 20, 8))
    for e in events:
        known = {"cpu_ns": e.cpu_ns, "batch": e.batch, "sample": e.sample, "size": e.bytes_out}
        buffer.event(e.code, e.start_ns, e.wall_ns, **{name: v for name, v in known.items() if v is not None})
    found = read_thread(path.read_bytes(), "1.trace")
    assert list(found.events) == events
    assert found.header == Header(vm, pid, 3, thread, 10, 20, 8)


def test_sizes():
    assert size_of(b"abc") == 3
    assert size_of("aé") == 3
    assert size_of({"image": np.zeros((2, 3), np.float32), "label": 4}) == 32
    assert size_of(Image.new("RGB", (5, 4))) == 60
    assert size_of(Image.new("F", (5, 4))) == 80
    assert size_of([b"a", object()]) == NO_NUMBER
    assert size_of(None) == NO_NUMBER


def test_the_recorder_needs_the_standard_library_only():
    code = "import sys, experiments.pipeline.trace; print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
