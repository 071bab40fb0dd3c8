"""The map of a pipeline: native functions by operation, and what LotusMap's method would have said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.pipeline.op_functions import Functions

BETWEEN = "between operations"
OTHER_THREADS = "other threads"

_Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A function in an operation. `share` is that of the operation's count, with a 95 % interval (Wilson) if the count is
    one of samples; instructions are exact."""

    op: str
    function: str
    library: str
    count: int
    share: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class OpRow:
    """An operation. `calls` were measured. `events` are estimated counts of the hardware's events; None: unknown."""

    op: str
    calls: int
    count: int
    share: float  # of all operations' count
    wall_ns: float | None  # a call, mean
    events: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LotusRow:
    """An operation alone: its runs, with f and s as in `lotus_map.runs`, and how many functions were seen."""

    op: str
    runs: int
    function_ns: float
    interval_ns: float
    functions: int
    attributed: float  # samples of the whole pipeline


@dataclass(frozen=True, slots=True)
class LotusComparison:
    """`error`: the share of samples that LotusMap attributes otherwise than the join; `unmapped`: to no operation."""

    confidence: float
    error: float | None
    unmapped: float | None
    ops: tuple[LotusRow, ...]


@dataclass(frozen=True, slots=True)
class PipelineMap:
    """A map. `unit` of the counts is samples or instructions."""

    target: str
    pipeline: str
    fingerprint: str
    data_sha256: str  # of the samples that were used
    unit: str
    samples: int  # different ones of the data set
    frequency_hz: int | None
    seconds: float | None  # that were sampled
    machine: str
    measured_at: str  # ISO 8601, UTC
    ops: tuple[OpRow, ...]
    functions: tuple[FunctionRow, ...]
    between: int | None  # count of the operations' threads between operations; None: not measured
    other_threads: int | None
    unknown_events: Mapping[str, str] = field(default_factory=dict)  # the reason, by event
    lotus: LotusComparison | None = None


def function_rows(op: str, functions: Functions, *, sampled: bool) -> list[FunctionRow]:
    """The functions of an operation, the highest count first."""
    total = functions.total()
    rows = []
    for function, count in sorted(functions.items(), key=lambda item: (-item[1], item[0])):
        low, high = wilson(count, total) if sampled else (None, None)
        rows.append(FunctionRow(op, function.name, function.library, count, count / total, low, high))
    return rows


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson (1927)."""
    share, spread = count / total, _Z * _Z / total
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Change:
    """Instructions of an operation a call, before and now."""

    op: str
    before: float
    now: float

    @property
    def percent(self) -> float:
        """How many percent more there are now."""
        return 100 * (self.now - self.before) / self.before if self.before else math.inf


def changes(before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> list[Change]:
    """Compare the operations that both maps have. The mappings give (count, calls) by operation; calls are above 0."""
    return [
        Change(op, before[op][0] / before[op][1], count / calls)
        for op, (count, calls) in now.items()
        if op in before
    ]
