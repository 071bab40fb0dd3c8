"""Joins samples of a profiler to spans of operations: which functions each operation spent its time in."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analysis.pipeline.native_function import NativeFunction
from analysis.pipeline.perf_script import PerfSample

Functions = Counter[NativeFunction]


@dataclass(frozen=True, slots=True)
class Span:
    """Thread `tid` ran operation `op` from `start_ns` until before `end_ns`. Spans of a thread do not overlap."""

    tid: int
    op: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Joined:
    """Weights of samples by function: of each operation, of its threads between operations, and of other threads.

    `outside` is the weight of samples before and after the measured time.
    """

    ops: dict[str, Functions] = field(default_factory=dict)
    between: Functions = field(default_factory=Counter)
    other_threads: Functions = field(default_factory=Counter)
    outside: int = 0

    @property
    def total(self) -> int:
        """All weights together."""
        parts = (*self.ops.values(), self.between, self.other_threads)
        return sum(part.total() for part in parts) + self.outside


def join(samples: Iterable[PerfSample], spans: Sequence[Span], start_ns: int, end_ns: int) -> Joined:
    """Assign each sample to the operation that its thread ran at its time; those before `start_ns` and from `end_ns` on
    are only counted."""
    joined = Joined({op: Counter() for op in dict.fromkeys(span.op for span in spans)})
    by_thread: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        by_thread[span.tid].append(span)
    starts = {tid: [span.start_ns for span in found] for tid, found in by_thread.items()}
    for sample in samples:
        if not start_ns <= sample.time_ns < end_ns:
            joined.outside += sample.weight
            continue
        if sample.tid not in by_thread:
            joined.other_threads[sample.function] += sample.weight
            continue
        at = bisect_right(starts[sample.tid], sample.time_ns) - 1
        span = by_thread[sample.tid][at] if at >= 0 else None
        into = joined.between if span is None or sample.time_ns >= span.end_ns else joined.ops[span.op]
        into[sample.function] += sample.weight
    return joined
