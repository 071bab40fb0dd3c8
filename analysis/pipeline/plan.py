"""All strategies of a profile in an experiment: samples/s, dollars, what pays, and why the best one is. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from analysis.pipeline.dollars import OFFLINE, OptionCost, cost, least_cheaper_passes
from analysis.pipeline.options import Bound, Option, Setting, at_t4, baseline_of, options_of
from analysis.pipeline.presto_score import Weights, scores
from analysis.pipeline.profile_records import Profile

Verdict = Literal["baseline", "pays", "does_not", "no_difference", "too_large", "unknown"]
"""Against the baseline, by dollars. too_large: the cache is larger than a peer's memory."""
PARTS = ("vm", "data", "storage", OFFLINE)
"""Of the dollars: VMs while training, bytes from the store, stored bytes, the work before training."""

_LEAST_DIFFERENCE = 0.001  # of the larger dollars

PART_WORDS = {
    "vm": "VMs",
    "data": "bytes from the store",
    "storage": "storage",
    OFFLINE: "the work before training",
}
VERDICT_WORDS: dict[Verdict, str] = {
    "baseline": "(compared with)",
    "pays": "pays",
    "does_not": "does not",
    "no_difference": "no difference measured",
    "too_large": "cache does not fit in memory",
    "unknown": "unknown",
}


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and its 95 % interval as T4's gives it. None: T4 has no interval, or one that reaches 0."""

    value: float
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, float | None]:
        """`{"value", "low", "high"}`."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Row:
    """One strategy with one number of passes."""

    option: Option
    cost: OptionCost
    sps: Interval  # of all peers
    usd_per_1m: Interval | None  # None: unknown, and `cost.unknown` says why
    verdict: Verdict
    break_even_passes: int | None  # None: never cheaper than the baseline, or unknown
    score: float | None
    peer_cache_bytes: float  # that each peer's cache takes

    @property
    def label(self) -> str:
        """The strategy's name."""
        return self.option.measured.strategy.label

    @property
    def bound(self) -> Bound:
        """What limits the peers for most of their time."""
        return self.cost.run.bound

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, with dollars as numbers."""
        strategy = self.option.measured.strategy
        usd = self.usd_per_1m
        return {
            "passes": self.cost.passes,
            "strategy": self.label,
            "split": strategy.split,
            "after": self.option.measured.after,
            "codec": strategy.codec,
            "streams": strategy.streams,
            "workers": strategy.workers,
            "worker_kind": strategy.worker_kind,
            "cache": strategy.cache,
            "sps": self.sps.to_json(),
            "bound": self.bound,
            "training_s": self.cost.run.seconds,
            "usd_per_1m_samples": None if usd is None else usd.to_json(),
            "parts_usd_per_1m_samples": {part: self.cost.part_usd_per_1m(part) for part in PARTS},
            "usd": self.cost.usd,
            "one_off_usd": self.cost.one_off_usd,
            "break_even_passes": self.break_even_passes,
            "verdict": self.verdict,
            "score": self.score,
            "peer_cache_bytes": self.peer_cache_bytes,
            "unknown": list(self.cost.unknown),
        }


@dataclass(frozen=True)
class Best:
    """The cheapest strategy that pays, or the baseline if none does, and where its dollars differ most."""

    row: Row
    baseline: Row
    saves: tuple[str, Decimal] | None  # the part that falls most, and by how many dollars per million samples
    costs: tuple[str, Decimal] | None  # the part that rises most
    unknown: int  # strategies whose dollars, or whose difference from the baseline, are unknown

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "passes": self.row.cost.passes,
            "strategy": self.row.label,
            "baseline": self.baseline.label,
            "saves": None
            if self.saves is None
            else {"part": self.saves[0], "usd_per_1m_samples": self.saves[1]},
            "costs": None
            if self.costs is None
            else {"part": self.costs[0], "usd_per_1m_samples": self.costs[1]},
            "unknown_options": self.unknown,
        }


@dataclass(frozen=True)
class PipelinePlan:
    """The rows by number of passes, in the order of the profile, and the best of each number."""

    rows: tuple[Row, ...]
    best: tuple[Best, ...]


def plan_pipeline(
    profile: Profile, setting: Setting, passes: Sequence[int], weights: Weights
) -> PipelinePlan:
    """Compare a profile's strategies. Raises ValueError for a profile without a strategy to compare with."""
    options = options_of(profile)
    label = baseline_of(profile).strategy.label
    base = next(option for option in options if option.measured.strategy.label == label)
    points = scores([option.measured for option in options], weights)
    even = [None if option is base else least_cheaper_passes(option, base, setting) for option in options]
    rows: list[Row] = []
    best: list[Best] = []
    for number in passes:
        base_cost = cost(base, setting, number)
        base_usd = _usd(base, base_cost, setting)
        some: list[Row] = []
        for option, score, cheaper_from in zip(options, points, even, strict=True):
            found = base_cost if option is base else cost(option, setting, number)
            usd = base_usd if option is base else _usd(option, found, setting)
            verdict: Verdict = "baseline" if option is base else verdict_of(usd, base_usd)
            kept = option.measured.cached_bytes * setting.samples / len(setting.peers)
            if not _fits(option, kept, setting):
                verdict = "too_large"
            sps = _sps(option, found, setting)
            some.append(Row(option, found, sps, usd, verdict, cheaper_from, score, kept))
        rows += some
        best.append(_best(some))
    return PipelinePlan(tuple(rows), tuple(best))


def difference(of: Interval, other: Interval) -> Interval:
    """Return of - other with its interval (MOVER: Zou & Donner, Statistics in Medicine 27, 2008, equation 7).

    Both are estimated independently. The interval is unknown if one of theirs is.
    """
    value = of.value - other.value
    if of.low is None or of.high is None or other.low is None or other.high is None:
        return Interval(value, None, None)
    low = value - math.hypot(of.value - of.low, other.high - other.value)
    return Interval(value, low, value + math.hypot(of.high - of.value, other.value - other.low))


def verdict_of(usd: Interval | None, baseline: Interval | None) -> Verdict:
    """Return whether a strategy is cheaper than the baseline. Less than a thousandth is no difference."""
    if usd is None or baseline is None:
        return "unknown"
    found = difference(usd, baseline)
    if found.low is None or found.high is None:
        return "unknown"
    if abs(found.value) < _LEAST_DIFFERENCE * max(usd.value, baseline.value):
        return "no_difference"
    return "pays" if found.high < 0 else "does_not" if found.low > 0 else "no_difference"


def _fits(option: Option, cache_bytes: float, setting: Setting) -> bool:
    in_memory = option.measured.strategy.cache == "memory"
    return not in_memory or setting.memory_bytes is None or cache_bytes <= setting.memory_bytes


def _usd(option: Option, found: OptionCost, setting: Setting) -> Interval | None:
    if found.usd_per_1m is None:
        return None
    ends = [_at(option, found, setting, end) for end in ("high", "low")]  # the faster, the cheaper
    low, high = (None if end is None or end.usd_per_1m is None else float(end.usd_per_1m) for end in ends)
    return Interval(float(found.usd_per_1m), low, high)


def _sps(option: Option, found: OptionCost, setting: Setting) -> Interval:
    low, high = (_at(option, found, setting, end) for end in ("low", "high"))
    return Interval(
        found.run.sps, None if low is None else low.run.sps, None if high is None else high.run.sps
    )


def _at(
    option: Option, found: OptionCost, setting: Setting, end: Literal["low", "high"]
) -> OptionCost | None:
    ended = at_t4(option, end)
    return None if ended is None else cost(ended, setting, found.passes)


def _best(rows: Sequence[Row]) -> Best:
    """Of equal dollars the faster one is best, and then the simpler one."""
    baseline = next(row for row in rows if row.verdict == "baseline")

    def rank(row: Row) -> tuple[float, float, int, int, int, str]:
        assert row.usd_per_1m is not None
        s = row.option.measured.strategy
        return row.usd_per_1m.value, -row.sps.value, s.split, s.streams, s.workers, row.label

    best = min((row for row in rows if row.verdict == "pays"), key=rank, default=baseline)
    saves, costs = _largest(best, baseline)
    unknown = sum(row.verdict == "unknown" or row.usd_per_1m is None for row in rows)
    return Best(best, baseline, saves, costs, unknown)


def _largest(best: Row, baseline: Row) -> tuple[tuple[str, Decimal] | None, tuple[str, Decimal] | None]:
    """Return the part that falls most from the baseline to the best strategy, and the one that rises most."""
    changes: dict[str, Decimal] = {}
    for part in PARTS:
        here, there = best.cost.part_usd_per_1m(part), baseline.cost.part_usd_per_1m(part)
        if here is not None and there is not None:
            changes[part] = here - there
    if not changes:
        return None, None
    down, up = min(changes, key=lambda part: changes[part]), max(changes, key=lambda part: changes[part])
    return (
        (down, -changes[down]) if changes[down] < 0 else None,
        (up, changes[up]) if changes[up] > 0 else None,
    )
