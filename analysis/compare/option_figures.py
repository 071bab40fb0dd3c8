"""Compares one figure of two rows of runs: a ratio with its interval, or a loss after equal samples. Pure.

A ratio is the row's figure / the other row's. Its 95 % interval is over runs if both rows have several, otherwise over
their measured epochs: t times the standard error of the logarithm (`metrics.stats.quotient_spread`).

Losses are compared after equal samples and never interpolated: at the smallest count that all runs of the model
reached, with each run's last record that is at most a tenth of a target batch beyond it. If that record is more than a
tenth of a target batch before it, or the target batch sizes differ, the loss is shown but not compared.

The noise is the bound that the difference of two means of equally distributed runs stays within in 95 % of cases. The
other row's n runs give the standard deviation s, so it is t(n - 1) s sqrt(1 / n_ours + 1 / n): Student's t for two
samples (Casella & Berger, Statistical Inference, 2nd ed., 8.41) with s from one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from experiments.study_file.baseline import COLUMNS, LOSSES
from metrics.provenance import host_mark, origin_mark
from metrics.stats import quotient_spread, t_quantile

FIGURES = tuple(column for column in COLUMNS if column not in LOSSES)
"""Figures compared by a ratio (computed by `metrics.figures`); LOSSES are compared after equal samples."""
_OFF = 0.1  # tolerance as a fraction of a target batch: rounds overshoot the target by some samples
_UNEQUAL = "not equal samples"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run's figure, and that of each measured epoch for which it is known. None: unknown."""

    value: float | None
    by_epoch: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """A loss and the number of samples trained on up to then, not scaled up."""

    samples: float
    loss: float


@dataclass(frozen=True)
class OptionRun:
    """One run of a row. `left_out`: why it does not count, "" if it does."""

    name: str  # of the experiment: "NLP C-8"
    label: str
    model: str
    run_id: str
    figures: Mapping[str, Measured] = field(default_factory=dict[str, Measured])  # by FIGURES
    learned: Mapping[str, Sequence[Learned]] = field(
        default_factory=dict[str, Sequence[Learned]]
    )  # by `LOSSES`
    target_batch: float | None = None  # raw
    dropped_rounds: int = 0
    origin: str = "emulated"
    prices: str = ""  # the price book's name
    against: str = ""  # the label of the row to compare with; "": the study's baseline
    left_out: str = ""
    experiment: str = ""  # the experiment's own name: "geo-c8-nlp"
    target: str | None = None  # a name of `cloud.targets`
    scales: Mapping[str, float] | None = None
    host_contended: bool | None = None  # None: unknown
    uncounted: frozenset[str] = frozenset()  # losses recorded only after an unknown number of samples

    @property
    def title(self) -> str:
        """The title of its row: `NLP C-8 wan`."""
        return f"{self.name} {self.label}".strip()

    @property
    def ran_on(self) -> str:
        """What its figures were measured on: see `metrics.provenance.origin_mark`."""
        return origin_mark(self.target, self.origin == "emulated")

    @property
    def host(self) -> str:
        """The load of its host: see `metrics.provenance.host_mark`."""
        return host_mark(self.host_contended, self.target)


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of a row: the mean of its runs, compared with the other row. None: unknown."""

    value: float | None
    n: int = 0  # runs
    ratio: float | None = None
    low: float | None = None  # of the ratio
    high: float | None = None
    n_of: str = ""  # what the interval covers: "runs" or "epochs"; "": there is no interval
    samples: tuple[float, float] | None = (
        None  # for a loss: the lowest and highest count trained on by its runs
    )
    difference: float | None = None  # for a loss: from the other row's
    noise: float | None = None  # of the difference; for a row compared with itself: of one more run
    noise_n: int = 0  # number of runs behind its standard deviation
    within_noise: bool | None = None
    why: str = ""  # why the figure is unknown, or not compared, or its noise is unknown


class Cells:
    """Compares rows of one study. All of its runs determine the sample count at which losses are compared."""

    def __init__(self, runs: Sequence[OptionRun]) -> None:
        self._samples: dict[tuple[str, str, float | None], float] = {}
        for figure in LOSSES:
            for run in _counted(runs):
                if records := run.learned.get(figure):
                    key = (figure, run.model, run.target_batch)
                    self._samples[key] = min(self._samples.get(key, math.inf), records[-1].samples)

    def cell(self, figure: str, own: Sequence[OptionRun], base: Sequence[OptionRun]) -> Cell:
        """Compare a row's figure with another row's. Both include runs that do not count, whose reasons explain unknowns."""
        return (self._loss if figure in LOSSES else _ratio)(figure, own, base)

    def _loss(self, figure: str, own: Sequence[OptionRun], base: Sequence[OptionRun]) -> Cell:
        ours, theirs = self._learned(figure, own), self._learned(figure, base)
        if not ours:
            return Cell(None, why=self._no_record(figure, own))
        value = fmean(one.loss for one in ours)
        samples = (min(one.samples for one in ours), max(one.samples for one in ours))
        counted = [*_counted(own), *_counted(base)]
        if not base:
            why = "nothing to compare with"
        elif not theirs:
            why = f"{base[0].title}: {self._no_record(figure, base)}"
        elif len({run.target_batch for run in counted}) > 1:
            why = "another target batch"
        else:
            why = "" if all(self._reached(figure, run) for run in counted) else _UNEQUAL
        if why:
            return Cell(value, len(ours), samples=samples, why=why)
        difference = value - fmean(one.loss for one in theirs)
        spread = stdev(one.loss for one in theirs) if len(theirs) > 1 else 0.0
        if not spread:
            single = "has 1 run, and a standard deviation needs two"
            reason = "has runs whose losses do not vary" if len(theirs) > 1 else single
            unknown = f"noise unknown: {base[0].title} {reason}"
            return Cell(value, len(ours), samples=samples, difference=difference, why=unknown)
        alike = 1 if _same(own, base) else len(ours)
        noise = t_quantile(len(theirs) - 1) * spread * math.sqrt(1 / alike + 1 / len(theirs))
        return Cell(
            value, len(ours), samples=samples, difference=difference, noise=noise, noise_n=len(theirs),
            within_noise=abs(difference) <= noise,
        )  # fmt: skip

    def _learned(self, figure: str, runs: Sequence[OptionRun]) -> list[Learned]:
        """The record of each counted run; [] if one has none."""
        found = [self._at(figure, run) for run in _counted(runs)]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else []

    def _no_record(self, figure: str, runs: Sequence[OptionRun]) -> str:
        """Describe why there is no loss to compare."""
        if not _counted(runs):
            return _not_counted(runs)
        without = [run for run in _counted(runs) if not run.learned.get(figure)]
        none = ", ".join(run.run_id for run in without if figure not in run.uncounted)
        uncounted = ", ".join(run.run_id for run in without if figure in run.uncounted)
        why = [
            *([f"unknown for {none}"] if none else []),
            *([f"the number of samples before the losses of {uncounted} is unknown"] if uncounted else []),
        ]
        return "; ".join(why) or _UNEQUAL

    def _reached(self, figure: str, run: OptionRun) -> bool:
        """Whether the run's record is at most the tolerance before the compared count."""
        one = self._at(figure, run)
        count = self._samples[figure, run.model, run.target_batch]
        return one is not None and one.samples >= count - _slack(run)

    def _at(self, figure: str, run: OptionRun) -> Learned | None:
        most = self._samples.get((figure, run.model, run.target_batch), 0.0) + _slack(run)
        return next((one for one in reversed(run.learned.get(figure, ())) if one.samples <= most), None)


def _ratio(figure: str, own: Sequence[OptionRun], base: Sequence[OptionRun]) -> Cell:
    ours, theirs = _values(own, figure), _values(base, figure)
    if not ours:
        return Cell(None, why=_unknown(figure, own))
    value = fmean(ours)
    if not theirs or fmean(theirs) <= 0:
        zero = f"{base[0].title} has the value 0" if theirs else ""
        why = zero or (f"{base[0].title}: {_unknown(figure, base)}" if base else "nothing to compare with")
        return Cell(value, len(ours), why=why)
    ratio = value / fmean(theirs)
    several = len(ours) > 1 and len(theirs) > 1
    pairs = (ours, theirs) if several else (_epochs(own, figure), _epochs(base, figure))
    bounds = ratio_bounds(ratio, *pairs)
    if bounds is None or _same(own, base):
        return Cell(value, len(ours), ratio)
    return Cell(value, len(ours), ratio, *bounds, "runs" if several else "epochs")


def ratio_bounds(ratio: float, ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a ratio from the values of both sides; None if one has fewer than two or no positive mean."""
    spread = quotient_spread(ours, theirs) if sum(ours) > 0 and sum(theirs) > 0 else None
    return None if spread is None else (ratio / math.exp(spread), ratio * math.exp(spread))


def _values(runs: Sequence[OptionRun], figure: str) -> list[float]:
    """The figure of each counted run; [] if one is unknown."""
    found = [run.figures[figure].value if figure in run.figures else None for run in runs if not run.left_out]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []


def _epochs(runs: Sequence[OptionRun], figure: str) -> list[float]:
    return [value for run in _counted(runs) for value in run.figures[figure].by_epoch]


def _unknown(figure: str, runs: Sequence[OptionRun]) -> str:
    """Describe why there is no figure."""
    none = [
        run.run_id for run in _counted(runs) if figure not in run.figures or run.figures[figure].value is None
    ]
    return f"unknown for {', '.join(none)}" if none else _not_counted(runs)


def _not_counted(runs: Sequence[OptionRun]) -> str:
    return "; ".join(dict.fromkeys(run.left_out for run in runs)) or "it has no run"


def _counted(runs: Sequence[OptionRun]) -> list[OptionRun]:
    return [run for run in runs if not run.left_out]


def _same(own: Sequence[OptionRun], base: Sequence[OptionRun]) -> bool:
    return [run.run_id for run in own] == [run.run_id for run in base]


def _slack(run: OptionRun) -> float:
    return _OFF * (run.target_batch or 0.0)
