"""Traces of the VMs of a run, as peers with `data.trace` write them, and their sums."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.pipeline.trace import TraceBuffer
from experiments.pipeline.trace_format import Code, Header
from experiments.pipeline.trace_sums import TraceSums
from experiments.wire.input_sums import FILE, to_json
from metrics.records import EpochRecord
from metrics.store.database import RunStore
from orchestrator.controller.input_sums import InputSums

SAMPLES, WAIT_NS, COLLATE_NS, OP_NS = 4, 2_000_000, 1_000_000, 5_000_000
_S = 1_000_000_000


def write_traces(run: Path, *, ops: bool = True) -> dict[str, Path]:
    """Write the files of each VM with epochs, as of its peer: one batch of 4 samples an epoch. Returns the VMs' folders."""
    folders = {vm: _write(run / "vms" / vm, own, ops) for vm, own in _epochs(run).items()}
    add_up(run, folders)
    return folders


def add_up(run: Path, folders: dict[str, Path]) -> None:
    """Write each VM's sums of its trace, as its peer does."""
    for vm, epochs in _epochs(run).items():
        rows = TraceSums(folders[vm] / "trace", vm).finish(epochs)
        (folders[vm] / FILE).write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows))


def store_sums(run: Path, folders: dict[str, Path]) -> list[str]:
    """Store what the VMs' files have, as at the end of a run. Returns the warnings."""
    with RunStore.open_writer(run / "run.db") as store:
        return InputSums(store).collect(folders)


def _epochs(run: Path) -> dict[str, list[EpochRecord]]:
    found: dict[str, list[EpochRecord]] = {}
    with RunStore.open_reader(run / "run.db") as store:
        for record in store.records("epochs"):
            found.setdefault(record.vm, []).append(record)
    return found


def _write(folder: Path, epochs: list[EpochRecord], ops: bool) -> Path:
    (folder / "trace").mkdir(parents=True)
    header = Header(epochs[0].vm, 7, 1, "batches", 0, 0, 100)  # monotonic times are unix times
    worker = TraceBuffer(folder / "trace" / "7-1-0.trace", header)
    consumer = TraceBuffer(folder / "trace" / "7-2-0.trace", header)
    for number, epoch in enumerate(epochs):
        at_ns = round(epoch.began_s) * _S + _S
        for sample in range(SAMPLES if ops else 0):
            decode = worker.name_id("decode")
            worker.event(Code.OP, at_ns, OP_NS, cpu_ns=OP_NS, sample=sample, size=100, name=decode)
        worker.event(Code.FETCH, at_ns, SAMPLES * OP_NS, batch=number, sample=SAMPLES)
        ready_ns = at_ns + SAMPLES * OP_NS
        worker.event(Code.COLLATE, ready_ns, COLLATE_NS, batch=number)
        consumer.event(Code.ARRIVED, ready_ns + COLLATE_NS, 0, batch=number)
        consumer.event(Code.WAIT, ready_ns, WAIT_NS, batch=number)
    return folder
