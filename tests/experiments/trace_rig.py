"""Traces with known times, and the epochs in which these are."""

from __future__ import annotations

from pathlib import Path

from experiments.pipeline.trace import TraceBuffer
from experiments.pipeline.trace_format import NO_CPU, Code, Header
from metrics.records import EpochRecord

REAL_S = 1_800_000_000  # at the monotonic time 0
MS = 1_000_000


def epoch(number: int, began_s: float, ended_s: float) -> EpochRecord:
    """An epoch `began_s` after REAL_S."""
    return EpochRecord(
        vm="eu-0", epoch=number, began_s=REAL_S + began_s, ended_s=REAL_S + ended_s, steps=1, samples=1, load_s=0.1, move_s=0,
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
