"""Compares a held-out figure of two experiments over equal seeds. Pure.

The difference of the means is compared with the pooled standard deviation of the two samples: the root of the mean of
their variances, each weighted by its degrees of freedom, s2 = ((n1-1) s1^2 + (n2-1) s2^2) / (n1 + n2 - 2) (Cohen 1988,
Statistical Power Analysis, 2.5.1); for equal n that is sqrt((s1^2 + s2^2) / 2). There is a verdict only if the runs are
equal in everything that determines what is learned: seeds, updates, target batch size, samples trained on, held-out
samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from metrics.provenance import host_mark, origin_mark

APART = 2.0
"""Means that differ by less than this many pooled standard deviations count as equal."""
SAMPLES_OFF = 0.02
"""Sample counts that differ by at most this fraction count as equal."""


@dataclass(frozen=True, slots=True)
class HeldOutRun:
    """One run after its last evaluated update. None: unknown. Counts are the run's own, not scaled up."""

    experiment: str
    run_id: str
    seed: int | None
    value: float | None  # of the figure; an accuracy is 0 to 1
    updates: int | None  # of the weights, up to then
    target_batch_size: int | None  # requested samples per update
    samples: int | None  # trained on up to then; None if the records of an update are missing
    heldout_samples: int | None
    host_contended: bool | None
    dropped_rounds: int | None  # averaging rounds that were partly lost, of all epochs
    target: str | None = None  # a name of `cloud.targets`
    emulated: bool | None = None

    @property
    def origin(self) -> str:
        """What it ran on: see `metrics.provenance.origin_mark`."""
        return origin_mark(self.target, self.emulated)

    @property
    def host(self) -> str:
        """The load of its host: see `metrics.provenance.host_mark`."""
        return host_mark(self.host_contended, self.target)


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one experiment. Runs whose host was too busy count only with `include_contended`."""

    experiment: str
    runs: tuple[HeldOutRun, ...]
    include_contended: bool = False

    @property
    def counted(self) -> tuple[HeldOutRun, ...]:
        """The counted runs with a value, by seed."""
        found = [r for r in self.runs if r.value is not None and self.counts(r)]
        return tuple(sorted(found, key=lambda r: (r.seed is None, r.seed or 0, r.run_id)))

    def counts(self, run: HeldOutRun) -> bool:
        """Whether a run counts, provided that it has a value."""
        return self.include_contended or not run.host_contended

    @property
    def values(self) -> list[float]:
        """The values of the counted runs."""
        return [r.value for r in self.counted if r.value is not None]

    @property
    def dropped_rounds(self) -> int | None:
        """Dropped rounds of the counted runs; None if unknown for one of them."""
        known = [r.dropped_rounds for r in self.counted if r.dropped_rounds is not None]
        return sum(known) if len(known) == len(self.counted) else None

    @property
    def mean(self) -> float | None:
        """The mean value; None without a run."""
        return fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation (n - 1); None for fewer than two runs."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, slots=True)
class HeldOutComparison:
    """A held-out figure of one experiment against that of another."""

    of: Side
    against: Side
    figure: str = "accuracy"  # a name that the task's `evaluate` gives

    @property
    def difference(self) -> float | None:
        """Difference of the means, `of` - `against`; None if one is unknown."""
        ours, theirs = self.of.mean, self.against.mean
        return None if ours is None or theirs is None else ours - theirs

    @property
    def pooled_sd(self) -> float | None:
        """The pooled standard deviation (see the module); None if one side has fewer than two runs."""
        if self.of.sd is None or self.against.sd is None:
            return None
        free, others = len(self.of.values) - 1, len(self.against.values) - 1
        return math.sqrt((free * self.of.sd**2 + others * self.against.sd**2) / (free + others))

    @property
    def limit(self) -> float | None:
        """The largest difference of the means that counts as equal."""
        return None if self.pooled_sd is None else APART * self.pooled_sd

    @property
    def inside(self) -> bool | None:
        """Whether the means differ by less than the limit; None: no verdict, for the reason in `why`."""
        if self.why or self.difference is None or self.limit is None:
            return None
        return abs(self.difference) < self.limit

    @property
    def why(self) -> str:
        """Why there is no verdict; "" if there is one."""
        for side in (self.of, self.against):
            if len(side.values) < 2:
                busy = sum(1 for r in side.runs if not side.counts(r))
                more = f" ({busy} more on a host that was too busy)" if busy else ""
                return (
                    f"{side.experiment} has {run_count(len(side.values))} with a held-out {self.figure}{more}, and a standard "
                    "deviation needs two"
                )
        ours, theirs = self.of.counted, self.against.counted
        seeds = [[r.seed for r in runs] for runs in (ours, theirs)]
        if seeds[0] != seeds[1] or None in seeds[0]:
            return f"the seeds are not equal: {_listed(seeds[0])} against {_listed(seeds[1])}"
        return _unequal([*ours, *theirs]) or (
            ""
            if self.pooled_sd
            else f"the values of {self.figure} do not vary, so there is no scale for their difference"
        )


def held_out_document(found: HeldOutComparison | None) -> dict[str, Any] | None:
    """Return the comparison as JSON types; unknown is None."""
    if found is None:
        return None
    return {
        "figure": found.figure,
        "of": _side(found.of),
        "against": _side(found.against),
        "difference": found.difference,
        "pooled_sd": found.pooled_sd,
        "limit": found.limit,
        "inside": found.inside,
        "why": found.why,
    }


def _unequal(runs: Sequence[HeldOutRun]) -> str:
    """Describe the first property of the runs that is unknown or differs; "" if there is none."""
    words = {
        "updates": "updates",
        "target_batch_size": "target batch sizes",
        "samples": "samples trained on",
        "heldout_samples": "held-out samples",
    }
    for name, what in words.items():
        values = [getattr(run, name) for run in runs]
        unknown = [run.run_id for run, value in zip(runs, values, strict=True) if value is None]
        if unknown:
            return f"{what}: unknown for {', '.join(unknown)}"
        off = SAMPLES_OFF * max(values) if name == "samples" else 0
        if max(values) - min(values) > off:
            return f"{what} are not equal: {min(values)} to {max(values)}"
    return ""


def _side(side: Side) -> dict[str, Any]:
    columns = (
        "run_id", "seed", "value", "updates", "target_batch_size", "samples", "heldout_samples",
        "dropped_rounds", "target", "emulated", "host_contended",
    )  # fmt: skip
    return {
        "experiment": side.experiment,
        "n": len(side.values),
        "mean": side.mean,
        "sd": side.sd,
        "runs": [
            {
                **{name: getattr(run, name) for name in columns},
                "counted": run.value is not None and side.counts(run),
            }
            for run in side.runs
        ],
    }


def run_count(count: int) -> str:
    """Format a number of runs: `1 run`, `2 runs`."""
    return f"{count} run{'s' if count != 1 else ''}"


def _listed(seeds: Sequence[int | None]) -> str:
    return ", ".join("unknown" if seed is None else str(seed) for seed in seeds)
