"""Parts of traces, and several traces side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from analysis.pipeline.records import Trace


def window(trace: Trace, first: int, end: int) -> Trace:
    """The batches `first` up to before `end` of each VM that were consumed, with their operations.

    Left out are also operations of no batch: those on bad samples, and on samples that were read ahead.
    """
    batches = tuple(b for b in trace.batches if first <= b.batch < end and b.consumed_start_ns is not None)
    kept = {(b.vm, b.batch) for b in batches}
    ops = tuple(op for op in trace.ops if op.batch is not None and (op.vm, op.batch) in kept)
    return replace(trace, ops=ops, batches=batches)


def together(traces: Iterable[Trace]) -> Trace:
    """One trace of several whose VMs have different names."""
    traces = tuple(traces)
    return Trace(
        tuple(sorted((op for t in traces for op in t.ops), key=lambda op: (op.start_ns, op.end_ns))),
        tuple(sorted((b for t in traces for b in t.batches), key=lambda b: (b.vm, b.batch))),
        tuple(sorted((p for t in traces for p in t.phases), key=lambda p: p.start_ns)),
        tuple(thread for t in traces for thread in t.threads),
    )
