"""Advice about an input pipeline, from its traces. Rules decide by numbers; `sentence` puts their result in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.pipeline.records import BatchRecord
from analysis.pipeline.statistics import Timing, WorkerCountStatistics, out_of_order_batches

_LEAST_SHARE = 0.01  # of the traced time, lost to head-of-line blocking, for advice
_KNEE_SHARE = 0.95  # of the rate of more workers, that the number of workers at the knee reaches


@dataclass(frozen=True, slots=True)
class HeadOfLine:
    """The consumer waited `blocked_s` of `traced_s` for a batch while a later one had arrived."""

    blocked_s: float
    traced_s: float
    out_of_order: int | None  # batches that arrived before one with a lower number

    @property
    def sentence(self) -> str:
        """The advice with its evidence."""
        arrived = (
            ""
            if self.out_of_order is None
            else f" (batches that arrived before one with a lower number: {self.out_of_order})"
        )
        return (
            f"in_order: false saves at most {self.blocked_s:.2f} s of {self.traced_s:.2f} s, which the consumer waited while a "
            f"later batch had arrived{arrived}."
        )


@dataclass(frozen=True, slots=True)
class Knee:
    """`workers` workers deliver at least 95 % of what more of them do; up to `most_workers` were tried."""

    workers: int
    samples_per_s: float
    most_workers: int
    most_samples_per_s: float
    cpu_s: float | None
    most_cpu_s: float | None

    @property
    def sentence(self) -> str:
        """The advice with its evidence."""
        cpu = (
            ""
            if self.cpu_s is None or self.most_cpu_s is None
            else f", and the CPU seconds go from {self.cpu_s:.2f} to {self.most_cpu_s:.2f}"
        )
        return (
            f"More workers than {self.workers} gain little: {self.workers} deliver {self.samples_per_s:.1f} samples/s, "
            f"{self.most_workers} deliver {self.most_samples_per_s:.1f}{cpu}."
        )


@dataclass(frozen=True, slots=True)
class ShuffleAfter:
    """A shuffle buffer behind `op` holds `bytes_now / bytes_after` times as many samples in the same memory."""

    op: str
    bytes_after: float
    bytes_now: float

    @property
    def sentence(self) -> str:
        """The advice with its evidence."""
        if self.bytes_after == 0:
            return f"Shuffle behind {self.op}: a sample takes no bytes there, but {self.bytes_now:,.0f} where it is shuffled now."
        return (
            f"Shuffle behind {self.op}: a sample takes {self.bytes_after:,.0f} bytes there, but {self.bytes_now:,.0f} where "
            f"it is shuffled now, so the same memory holds {self.bytes_now / self.bytes_after:.1f} times as many."
        )


def head_of_line(batches: Sequence[BatchRecord]) -> HeadOfLine | None:
    """Return the time lost to delivery in order; None below 1 % of the traced time.

    Lost is the part of a wait in which a batch that was consumed later had arrived, or was ready where no arrival was
    recorded. Times of several VMs are added.
    """
    blocked_ns, span_ns = 0, 0
    for vm in {b.vm for b in batches}:
        consumed = [
            (
                b.consumed_start_ns,
                b.wait_start_ns,
                b.ready_ns if b.arrived_ns is None else b.arrived_ns,
                b.consumed_ns or 0,
            )
            for b in batches
            if b.vm == vm and b.consumed_start_ns is not None and b.wait_start_ns is not None
        ]
        if not consumed:
            continue
        span_ns += max(got + used for got, _, _, used in consumed) - min(asked for _, asked, _, _ in consumed)
        earliest: int | None = None  # arrival, of the batches consumed later
        for got_ns, asked_ns, there_ns, _ in sorted(consumed, key=lambda times: -times[0]):
            if earliest is not None and (lost_ns := got_ns - max(asked_ns, earliest)) > 0:
                blocked_ns += lost_ns
            if there_ns is not None:
                earliest = there_ns if earliest is None else min(earliest, there_ns)
    if not blocked_ns or blocked_ns < _LEAST_SHARE * span_ns:
        return None
    late = out_of_order_batches(batches)
    return HeadOfLine(blocked_ns / 1e9, span_ns / 1e9, None if late is None else len(late))


def knee(rows: Sequence[WorkerCountStatistics]) -> Knee | None:
    """Return the fewest workers with at least 95 % of the rate of each larger number, as far as the 95 % intervals show it.

    None if no number but the largest is known to have that, or a rate is unknown. A rate without an interval shows nothing.
    """
    ordered = sorted(rows, key=lambda row: row.workers)
    rates = [row.samples_per_s for row in ordered if row.samples_per_s is not None]
    if len(rates) < len(rows):
        return None
    for number, (row, rate) in enumerate(zip(ordered[:-1], rates, strict=False)):
        if all(_least_ratio(row, more) >= _KNEE_SHARE for more in ordered[number + 1 :]):
            last = ordered[-1]
            return Knee(row.workers, rate, last.workers, rates[-1], row.cpu_s, last.cpu_s)
    return None


def _least_ratio(row: WorkerCountStatistics, other: WorkerCountStatistics) -> float:
    """The lower end of the 95 % interval of the ratio of two rates, which were measured independently; 0 if unknown."""
    here, there = row.samples_per_s_interval, other.samples_per_s_interval
    if not row.samples_per_s or not other.samples_per_s or here is None or there is None:
        return 0.0
    below, above = math.log(row.samples_per_s / here[0]), math.log(there[1] / other.samples_per_s)
    return row.samples_per_s / other.samples_per_s * math.exp(-math.hypot(below, above))


def shuffle_after(ops: Sequence[Timing], bytes_now: float) -> ShuffleAfter | None:
    """Return the operation with the smallest output, of those the first; None if samples are smaller where they are now.

    `bytes_now` is the mean size of a sample in the shuffle buffer. None also if the size after an operation is unknown.
    """
    sizes = [(op.mean_bytes_out, op.name) for op in ops if op.mean_bytes_out is not None]
    if not sizes or len(sizes) < len(ops):
        return None
    size, name = min(sizes, key=lambda pair: pair[0])
    return ShuffleAfter(name, size, bytes_now) if size < bytes_now else None
