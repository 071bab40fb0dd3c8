"""Sums of the peers' traces, stored when a run ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from made_up_run import write_run
from traced_run import OP_NS, SAMPLES, WAIT_NS, store_sums, write_traces

from experiments.pipeline.trace import TraceBuffer
from experiments.pipeline.trace_format import Code, Header
from metrics.records import InputTraceRecord
from metrics.store.database import RunStore
from orchestrator.controller.calls import Call
from orchestrator.controller.finish import close_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two peers and three epochs."""
    write_run(tmp_path, peers=2, epochs=3)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("experiment", {"name": "geo-c8", "data": {"trace": "ops"}})
    return tmp_path


class _Provider:
    """Keeps each VM's files in the run's folder."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def wait(self, call: Call) -> str:
        return str(self._run / "vms" / call.arguments[0]) if call.method == "collect" else ""


def test_a_run_that_ends_keeps_the_sums_of_its_traces(run: Path):
    folders = write_traces(run)
    with RunStore.open_writer(run / "run.db") as store:
        vms = store.records("vms")
        for _ in range(2):  # a controller that died before the end of the first attempt
            close_run(store, _Provider(run), run, vms, 9.0, "done", "")  # pyright: ignore[reportArgumentType]
        assert store.meta("warnings") == []
        ops, batches, traces = (store.records(t) for t in ("input_ops", "input_batches", "input_traces"))
    keys = {(vm, epoch) for vm in folders for epoch in (1, 2, 3)}
    assert {(row.vm, row.epoch): (row.op, row.n, row.wall_s, row.bytes_out) for row in ops} == {
        key: ("decode", SAMPLES, SAMPLES * OP_NS / 1e9, 100 * SAMPLES) for key in keys
    }
    assert {(row.vm, row.epoch): (row.n, row.samples, row.wait_s) for row in batches} == {
        key: (1, SAMPLES, WAIT_NS / 1e9) for key in keys
    }
    assert traces == [InputTraceRecord(vm, 2, 0, 0) for vm in sorted(folders)]


def test_damaged_files_are_named_and_end_nothing(run: Path):
    folders = write_traces(run)
    first, second = sorted(folders)
    (folders[first] / "trace" / "7-1-0.trace").write_bytes(b"orchtrc1 and no more")
    cut = folders[second] / "trace" / "7-2-0.trace"
    cut.write_bytes(cut.read_bytes()[:-1])
    (warning, other) = store_sums(run, folders)
    assert f"of {first} is incomplete, 1 of 2 files are damaged" in warning
    assert "7-1-0.trace: this is not a trace" in warning
    assert "7-2-0.trace: the end of the file is missing" in other
    with RunStore.open_reader(run / "run.db") as store:
        assert {row.vm for row in store.records("input_ops")} == {second}
        assert [row.damaged for row in store.records("input_traces")] == [1, 1]


def test_dropped_events_and_missing_traces_are_told(run: Path):
    folders = write_traces(run)
    first, second = sorted(folders)
    shutil.rmtree(folders[second] / "trace")
    full = TraceBuffer(folders[first] / "trace" / "full.trace", Header(first, 7, 3, "full", 0, 0, 1))
    for _ in range(3):
        full.event(Code.ARRIVED, 1, 0)
    dropped, silent = store_sums(run, folders)
    assert f"{first} lacks 2 events" in dropped
    assert f"the input times of {second} are unknown" in silent
    with RunStore.open_reader(run / "run.db") as store:
        assert [row.vm for row in store.records("input_traces")] == [first]


def test_a_run_without_traces_has_neither_sums_nor_warnings(run: Path):
    with RunStore.open_writer(run / "run.db") as store:
        store.set_meta("experiment", {"name": "geo-c8"})
    assert store_sums(run, {row: run / "vms" / row for row in ("geo-c8-20231114-aaaa-p0-0",)}) == []


def test_an_unexpected_fault_of_one_trace_spares_the_others(run: Path, monkeypatch: pytest.MonkeyPatch):
    from orchestrator.controller import input_sums

    folders = write_traces(run)
    first, second = sorted(folders)
    real = input_sums.sums_of

    def sums_of(files, vm, epochs):
        if vm == first:
            raise MemoryError
        return real(files, vm, epochs)

    monkeypatch.setattr(input_sums, "sums_of", sums_of)
    (warning,) = store_sums(run, folders)
    assert f"The input trace of {first} cannot be read and is skipped" in warning
    with RunStore.open_reader(run / "run.db") as store:
        assert [row.vm for row in store.records("input_traces")] == [second]
