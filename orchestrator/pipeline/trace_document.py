"""Statistics of recorded inputs and runs, and advice, as a document of JSON types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.pipeline.advice import HeadOfLine, Knee, ShuffleAfter, head_of_line, knee, shuffle_after
from analysis.pipeline.merge import read_trace
from analysis.pipeline.records import Trace
from analysis.pipeline.statistics import (
    Timing,
    batch_statistics,
    by_worker_count,
    collate_timing,
    op_timings,
    samples_per_s,
    samples_per_s_interval,
)
from experiments.pipeline.trace_format import SUFFIX
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.pipeline.tracing import Recorded

_CODES = {HeadOfLine: "head_of_line", Knee: "knee", ShuffleAfter: "shuffle_after"}


def run_trace(folder: Path) -> Trace:
    """The trace of a run's peers. Raises UsageError if they recorded none, TraceFileError."""
    vms = folder / "vms"
    if not any(vms.rglob(f"*{SUFFIX}")):
        raise UsageError(
            f"{folder.name}: there are no trace files in {vms}; record some with `orch launch ... --set data.trace=ops`. "
            f"Those of rented VMs end with the VMs: `orch report {folder.name}` has their sums."
        )
    return read_trace(vms)


def statistics(trace: Trace) -> dict[str, Any]:
    """The figures of one trace; times in ms, sums in s. Unknown ones are None."""
    batches, collate, ops = (
        batch_statistics(trace.batches),
        collate_timing(trace.batches),
        op_timings(trace.ops),
    )
    return {
        "samples_per_s": samples_per_s(trace.batches),
        "cpu_s": by_worker_count({1: trace})[0].cpu_s if ops or collate else None,
        "dropped": trace.dropped,
        "ops": [_timing(op) for op in ops],
        "collate": None if collate is None else _timing(collate),
        "batches": {
            "n": batches.n,
            "mean_ms": _ms(batches.mean_ns),
            "sd_percent": batches.sd_percent,
            "iqr_ms": _ms(batches.iqr_ns),
            "outliers": batches.outliers,
            "wait_s": batches.wait_s,
            "delay_s": batches.delay_s,
            "wait_share": _wait_share(trace, batches.wait_s),
            "share_wait_over_500ms": batches.share_wait_over_500ms,
            "share_delay_over_500ms": batches.share_delay_over_500ms,
            "out_of_order": batches.out_of_order,
        },
    }


def recorded_document(recorded: Recorded) -> dict[str, Any]:
    """The settings and figures of one recording."""
    interval = samples_per_s_interval(recorded.trace.batches)
    return {
        "workers": recorded.workers.count,
        "worker_kind": recorded.workers.kind,
        "in_order": recorded.workers.in_order,
        "streams": recorded.streams,
        "bad_samples": recorded.bad_samples,
        "samples_per_s_interval": None if interval is None else list(interval),
        "busy_share": _busy_share(recorded.trace, recorded.workers.count),
        **statistics(recorded.trace),
    }


def run_document(trace: Trace) -> dict[str, Any]:
    """The figures of a run, whose settings the trace does not hold."""
    settings = dict.fromkeys(
        (
            "workers",
            "worker_kind",
            "in_order",
            "streams",
            "bad_samples",
            "samples_per_s_interval",
            "busy_share",
        )
    )
    return {**settings, **statistics(trace)}


def advice_of_recorded(recorded: Sequence[Recorded], mean_bytes_stored: float | None) -> list[dict[str, Any]]:
    """Advice with its evidence. Samples in the shuffle buffer are as they are in the shard."""
    found = list[dict[str, Any]]()
    for one in recorded:
        if one.workers.in_order and (blocked := head_of_line(one.trace.batches)) is not None:
            found.append(_advice(blocked, one.workers.count))
    if (most := knee(by_worker_count({one.workers.count: one.trace for one in recorded}))) is not None:
        found.append(_advice(most))
    if recorded and mean_bytes_stored is not None:
        after = shuffle_after(op_timings(recorded[0].trace.ops), mean_bytes_stored)
        if after is not None:
            found.append(_advice(after))
    return found


def advice_of_run(trace: Trace) -> list[dict[str, Any]]:
    """Advice with its evidence, as far as one trace gives it."""
    blocked = head_of_line(trace.batches)
    return [] if blocked is None else [_advice(blocked)]


def _advice(advice: HeadOfLine | Knee | ShuffleAfter, of_workers: int | None = None) -> dict[str, Any]:
    return {
        "code": _CODES[type(advice)],
        "of_workers": of_workers,
        "evidence": asdict(advice),
        "sentence": advice.sentence,
    }


def _wait_share(trace: Trace, wait_s: float | None) -> float | None:
    """Waits of the consumers, of the time from the first request to the end of the last use, added over VMs."""
    times_ns = dict[str, tuple[int, int]]()
    for b in trace.batches:
        if b.consumed_start_ns is None or b.wait_start_ns is None:
            continue
        first_ns, last_ns = times_ns.get(b.vm, (b.wait_start_ns, 0))
        end_ns = b.consumed_start_ns + (b.consumed_ns or 0)
        times_ns[b.vm] = min(first_ns, b.wait_start_ns), max(last_ns, end_ns)
    traced_ns = sum(last_ns - first_ns for first_ns, last_ns in times_ns.values())
    return wait_s * 1e9 / traced_ns if wait_s is not None and traced_ns else None


def _busy_share(trace: Trace, workers: int) -> float | None:
    """Wall time of the operations, of the time of all workers while the batches were consumed; at most 1."""
    rate, samples = samples_per_s(trace.batches), sum(b.samples or 0 for b in trace.batches)
    if not rate or not trace.ops:
        return None
    return min(1.0, sum(op.wall_ns for op in trace.ops) / 1e9 / (workers * samples / rate))


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.name,
        "n": timing.n,
        "mean_ms": timing.mean_ns / 1e6,
        "p90_ms": timing.p90_ns / 1e6,
        "share_below_10ms": timing.share_below_10ms,
        "share_below_100us": timing.share_below_100us,
        "cpu_s": timing.cpu_s,
        "mean_bytes_out": timing.mean_bytes_out,
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6
