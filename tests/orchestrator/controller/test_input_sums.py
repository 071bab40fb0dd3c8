"""Sums of the peers' traces, stored while a run goes on and when it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run
from traced_run import OP_NS, SAMPLES, WAIT_NS, store_sums, write_traces

from cloud.provider import Observed
from experiments.wire.input_sums import FILE, MAX_ROWS, to_json
from metrics.records import InputOpRecord, InputTraceRecord
from metrics.store.database import RunStore
from orchestrator.controller import input_sums
from orchestrator.controller.calls import Call
from orchestrator.controller.finish import close_run
from orchestrator.controller.input_sums import InputSums

TABLES = ("input_ops", "input_batches", "input_traces")


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


def seen(vm: str, entries: Any) -> Observed:
    status = {"phase": "training", "input_sums": entries}
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def entries_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def tables(run: Path) -> list[set[Any]]:
    with RunStore.open_reader(run / "run.db") as store:
        return [set(store.records(table)) for table in TABLES]


def test_a_run_that_ends_keeps_the_sums_of_its_traces(run: Path):
    folders = write_traces(run)
    with RunStore.open_writer(run / "run.db") as store:
        vms = store.records("vms")
        for _ in range(2):  # a controller that died before the end of the first attempt
            close_run(store, _Provider(run), run, vms, 9.0, "done", "")  # pyright: ignore[reportArgumentType]
        assert store.meta("warnings") == []
    ops, batches, traces = tables(run)
    keys = {(vm, epoch) for vm in folders for epoch in (1, 2, 3)}
    assert {(row.vm, row.epoch): (row.op, row.n, row.wall_s, row.bytes_out) for row in ops} == {
        key: ("decode", SAMPLES, SAMPLES * OP_NS / 1e9, 100 * SAMPLES) for key in keys
    }
    assert {(row.vm, row.epoch): (row.n, row.samples, row.wait_s) for row in batches} == {
        key: (1, SAMPLES, WAIT_NS / 1e9) for key in keys
    }
    assert traces == {InputTraceRecord(vm, 2, 0, 0) for vm in folders}


def test_what_a_vm_reported_is_that_of_its_file(run: Path):
    folders = write_traces(run)
    with RunStore.open_writer(run / "run.db") as store:
        InputSums(store).write(seen(vm, entries_of(folder)) for vm, folder in folders.items())
    reported = tables(run)
    assert all(reported)
    assert store_sums(run, folders) == []
    assert tables(run) == reported


def test_a_preempted_vm_keeps_what_it_has_reported(run: Path):
    folders = write_traces(run)
    first, second = sorted(folders)
    with RunStore.open_writer(run / "run.db") as store:
        InputSums(store).write([seen(first, entries_of(folders[first]))])
    shutil.rmtree(folders[first])
    assert store_sums(run, {second: folders[second]}) == []
    assert [{row.vm for row in table} for table in tables(run)] == [{first, second}] * 3


def test_a_later_sum_takes_the_place_of_an_earlier_one(run: Path):
    def told(n: int) -> list[Any]:
        return to_json(InputOpRecord("a", 1, "decode", n, float(n), None, None))

    with RunStore.open_writer(run / "run.db") as store:
        sums = InputSums(store)
        sums.write([seen("a", [told(1)])])
        sums.write([seen("a", [told(1), told(2)])])
        InputSums(store).write([seen("a", [told(4)])])  # the next controller
        InputSums(store).write([seen("a", [told(3)])])  # a report that was overtaken
        (row,) = store.records("input_ops")
    assert (row.n, row.wall_s) == (4, 4.0)


@pytest.mark.parametrize("hostile", [7, "x", {}, [None], [[]], [["events", 1]], [["input_traces", 1, 1, -1]]])
def test_an_invalid_report_changes_nothing_and_hides_no_other(run: Path, hostile: Any):
    with RunStore.open_writer(run / "run.db") as store:
        InputSums(store).write([seen("a", hostile), seen("b", [["input_traces", 1, 0, 0]])])
        assert store.records("input_traces") == [InputTraceRecord("b", 1, 0, 0)]


def test_a_vm_cannot_fill_the_store(run: Path, monkeypatch: pytest.MonkeyPatch):
    assert MAX_ROWS >= 1000
    monkeypatch.setattr(input_sums, "MAX_ROWS", 3)
    with RunStore.open_writer(run / "run.db") as store:
        sums = InputSums(store)
        for number in range(5):
            sums.write([seen("a", [to_json(InputOpRecord("a", number, "op", 1, 1.0, None, None))])])
        assert [row.epoch for row in store.records("input_ops")] == [0, 1, 2]


@pytest.mark.parametrize("content", [b"no json\n", b"\xff\n", b"[" * 200_000 + b"\n"])
def test_an_unreadable_file_is_named_and_ends_nothing(run: Path, content: bytes):
    folders = write_traces(run)
    first, second = sorted(folders)
    (folders[first] / FILE).write_bytes(content)
    skipped, unknown = store_sums(run, folders)
    assert f"{FILE} of {first} cannot be read and is skipped" in skipped
    assert f"The input times of {first} are unknown" in unknown
    assert {row.vm for row in tables(run)[2]} == {second}


def test_a_last_line_that_is_cut_off_is_left_out(run: Path):
    folders = write_traces(run)
    path = folders[min(folders)] / FILE
    path.write_bytes(path.read_bytes() + b'["input_ops", 1, "dec')
    assert store_sums(run, folders) == []


def test_dropped_events_damaged_files_and_missing_sums_are_told(run: Path):
    folders = write_traces(run)
    first, second = sorted(folders)
    (folders[second] / FILE).unlink()
    (folders[first] / FILE).write_text('["input_traces", 3, 1, 2]\n')
    damaged, dropped, silent = store_sums(run, folders)
    assert f"{first} is incomplete, 1 of 3 files are damaged" in damaged
    assert f"{first} lacks 2 events" in dropped
    assert f"the input times of {second} are unknown" in silent.lower()
    assert [row.vm for row in tables(run)[2]] == [first]


def test_a_run_without_traces_has_neither_sums_nor_warnings(run: Path):
    with RunStore.open_writer(run / "run.db") as store:
        store.set_meta("experiment", {"name": "geo-c8"})
    assert store_sums(run, {row: run / "vms" / row for row in ("geo-c8-20231114-aaaa-p0-0",)}) == []
