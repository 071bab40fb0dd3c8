"""Statistics of a trace, by operation, batch and number of workers (those of Lotus, IISWC 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from analysis.pipeline.records import BatchRecord, OpRecord, Trace
from metrics.stats import t_interval_half

SHORT_NS = 10_000_000
VERY_SHORT_NS = 100_000
LONG_NS = 500_000_000  # waits and delays above it are counted
_WHISKER = 1.5  # interquartile ranges beyond the quartiles where outliers begin
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one operation, or the collation, takes. Shares are of `n`; bytes are unknown unless all of them are known."""

    name: str
    n: int
    mean_ns: float
    p90_ns: float
    share_below_10ms: float
    share_below_100us: float
    cpu_s: float | None  # sum
    mean_bytes_out: float | None = None


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Preprocessing times of the batches, and what the consumer and the batches waited.

    `iqr_ns` is the interquartile range of the `n - outliers` times within 1.5 interquartile ranges of the quartiles.
    """

    n: int
    mean_ns: float | None  # of preprocessing, like the next three
    sd_percent: float | None  # of the mean
    iqr_ns: float | None
    outliers: int
    share_wait_over_500ms: float | None
    share_delay_over_500ms: float | None
    wait_s: float | None  # sum
    delay_s: float | None  # sum
    out_of_order: int | None


@dataclass(frozen=True, slots=True)
class WorkerCountStatistics:
    """One trace with `workers` workers: what it delivered and which CPU seconds it took."""

    workers: int
    batches: BatchStatistics
    samples_per_s: float | None
    cpu_s: float | None  # of operations and collation
    samples_per_s_interval: tuple[float, float] | None = None  # 95 %


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, linear between the two nearest ranks. Needs a value."""
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def op_timings(ops: Sequence[OpRecord]) -> tuple[Timing, ...]:
    """One row per operation, in the order in which a sample passes them: by the earliest start of each."""
    by_op: dict[str, list[OpRecord]] = {}
    for record in sorted(ops, key=lambda r: r.start_ns):
        by_op.setdefault(record.op, []).append(record)
    return tuple(
        _timing(
            name,
            [r.wall_ns for r in records],
            [r.cpu_ns for r in records],
            [r.bytes_out for r in records],
        )
        for name, records in by_op.items()
    )


def collate_timing(batches: Sequence[BatchRecord]) -> Timing | None:
    """The collation of all batches; None if none was recorded."""
    recorded = [(b.collate_ns, b.collate_cpu_ns) for b in batches if b.collate_ns is not None]
    if not recorded:
        return None
    return _timing("collate", [wall for wall, _ in recorded], [cpu for _, cpu in recorded], [])


def batch_statistics(batches: Sequence[BatchRecord]) -> BatchStatistics:
    """Statistics over all batches; of each figure, over those in which it is known."""
    times = [b.preprocess_ns for b in batches if b.preprocess_ns is not None]
    waits = [b.wait_ns for b in batches if b.wait_ns is not None]
    delays = [b.delay_ns for b in batches if b.delay_ns is not None]
    inside = _without_outliers(times)
    mean = math.fsum(times) / len(times) if times else None
    out_of_order = out_of_order_batches(batches)
    return BatchStatistics(
        n=len(batches),
        mean_ns=mean,
        sd_percent=_sd_percent(times),
        iqr_ns=percentile(inside, 0.75) - percentile(inside, 0.25) if inside else None,
        outliers=len(times) - len(inside),
        share_wait_over_500ms=_share(waits, lambda ns: ns > LONG_NS),
        share_delay_over_500ms=_share(delays, lambda ns: ns > LONG_NS),
        wait_s=sum(waits) / _NS if waits else None,
        delay_s=sum(delays) / _NS if delays else None,
        out_of_order=None if out_of_order is None else len(out_of_order),
    )


def out_of_order_batches(batches: Iterable[BatchRecord]) -> tuple[tuple[str, int], ...] | None:
    """(VM, number) of the batches that arrived while one with a lower number was outstanding.

    None if no arrival was recorded. A batch whose arrival is unknown is left out.
    """
    arrived = [(b.vm, b.batch, b.arrived_ns) for b in batches if b.arrived_ns is not None]
    if not arrived:
        return None
    found = list[tuple[str, int]]()
    latest: dict[str, int] = {}  # arrival of a batch with a lower number, by VM
    for vm, batch, at_ns in sorted(arrived):
        if at_ns < latest.get(vm, at_ns):
            found.append((vm, batch))
        latest[vm] = max(at_ns, latest.get(vm, at_ns))
    return tuple(found)


def samples_per_s(batches: Sequence[BatchRecord]) -> float | None:
    """Samples of the batches that were consumed, by the time from the first request to the end of the last use.

    The rates of several VMs are added. None if nothing was consumed or a number of samples is unknown.
    """
    by_vm: dict[str, list[BatchRecord]] = {}
    for batch in batches:
        if batch.consumed_start_ns is None:
            continue
        by_vm.setdefault(batch.vm, []).append(batch)
    rates = [_rate(of_vm) for of_vm in by_vm.values()]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def samples_per_s_interval(batches: Sequence[BatchRecord]) -> tuple[float, float] | None:
    """95 % of the samples/s of one VM, from the times between batches of one size. None if it has no upper end."""
    got_ns = [b.consumed_start_ns for b in batches if b.consumed_start_ns is not None]
    samples, vms = {b.samples for b in batches}, {b.vm for b in batches}
    each = next(iter(samples)) if len(samples) == len(vms) == 1 else None
    if each is None or batches[0].wait_start_ns is None:
        return None
    times_s = [(end - start) / _NS for start, end in pairwise([batches[0].wait_start_ns, *got_ns])]
    half = t_interval_half(times_s)
    if half is None or half >= (mean_s := sum(times_s) / len(times_s)):
        return None
    return each / (mean_s + half), each / (mean_s - half)


def by_worker_count(traces: Mapping[int, Trace]) -> tuple[WorkerCountStatistics, ...]:
    """One row per trace, which are given by the number of workers with which they were recorded."""
    return tuple(_of_workers(workers, traces[workers]) for workers in sorted(traces))


def _of_workers(workers: int, trace: Trace) -> WorkerCountStatistics:
    parts = [timing.cpu_s for timing in op_timings(trace.ops)]
    if (collate := collate_timing(trace.batches)) is not None:
        parts.append(collate.cpu_s)
    known = [cpu_s for cpu_s in parts if cpu_s is not None]
    return WorkerCountStatistics(
        workers,
        batch_statistics(trace.batches),
        samples_per_s(trace.batches),
        math.fsum(known) if known and len(known) == len(parts) else None,
        samples_per_s_interval(trace.batches),
    )


def _rate(batches: Sequence[BatchRecord]) -> float | None:
    samples, starts, ends = 0, list[int](), list[int]()
    for b in batches:
        if b.samples is None or b.wait_start_ns is None or b.consumed_start_ns is None:
            return None
        samples += b.samples
        starts.append(b.wait_start_ns)
        ends.append(b.consumed_start_ns + (b.consumed_ns or 0))
    span_ns = max(ends) - min(starts)
    return samples * _NS / span_ns if span_ns > 0 else None


def _timing(
    name: str, walls: Sequence[int], cpus: Sequence[int | None], sizes: Sequence[int | None]
) -> Timing:
    n = len(walls)
    known_cpus = [cpu for cpu in cpus if cpu is not None]
    known_sizes = [size for size in sizes if size is not None]
    return Timing(
        name,
        n,
        sum(walls) / n,
        percentile(walls, 0.9),
        sum(wall < SHORT_NS for wall in walls) / n,
        sum(wall < VERY_SHORT_NS for wall in walls) / n,
        sum(known_cpus) / _NS if len(known_cpus) == n else None,
        sum(known_sizes) / n if len(known_sizes) == n else None,
    )


def _without_outliers(times: Sequence[int]) -> list[int]:
    if not times:
        return []
    low, high = percentile(times, 0.25), percentile(times, 0.75)
    margin = _WHISKER * (high - low)
    return [time for time in times if low - margin <= time <= high + margin]


def _sd_percent(times: Sequence[int]) -> float | None:
    if len(times) < 2:
        return None
    mean = math.fsum(times) / len(times)
    if mean == 0:
        return None
    variance = math.fsum((time - mean) ** 2 for time in times) / (len(times) - 1)
    return 100 * math.sqrt(variance) / mean


def _share(values: Sequence[int], counts: Callable[[int], bool]) -> float | None:
    return sum(map(counts, values)) / len(values) if values else None
