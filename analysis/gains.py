"""What each option of a study gains: its runs beside those of one entry, the baseline. Pure.

A row is an entry of the study: an experiment and a label, with one run or several. It is held against the row of the
same experiment that has the baseline's label (or the label that its entry names), or, where there is none, against the only
such row of its model: so an experiment without distance stands beside one with it.

A ratio is the row's figure over the baseline's. Its 95 % interval is over runs where both have several, else over
their measured epochs: t times the standard error of the logarithm (`metrics.interval.quotient_spread`).

Losses are compared after equal samples, and never interpolated: at the smallest count that any run of the model came
to, each run's last record that is not more than a tenth of a target batch beyond it. Where that record is more than as
much before it, or an update was made from more or fewer samples, the loss is shown and not compared. The noise is twice the
standard deviation of the baseline's runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from metrics.interval import quotient_spread

__all__ = [
    "FIGURES",
    "LOSSES",
    "Cell",
    "Gain",
    "Gains",
    "Learned",
    "Measured",
    "OptionRun",
    "gains",
    "gains_document",
]

FIGURES = ("sps", "granularity", "usd_per_1m", "intercontinental_bytes")
"""Figures with a ratio: samples/s, calculation over communication, dollars a million samples, bytes a swarm epoch."""
LOSSES = ("loss", "heldout_loss")
"""Figures that are compared after equal samples: of training (mean of the epoch that ends there), of held-out data."""
_OFF = 0.1  # of a target batch: rounds overshoot the target by some samples
_SPREADS = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A run's figure and the same of each measured epoch alone (those that are known). None: unknown."""

    value: float | None
    by_epoch: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """A loss, and how many samples the network had learned from by then; not multiplied back."""

    samples: float
    loss: float


@dataclass(frozen=True)
class OptionRun:
    """One run of a row. `left_out`: why it does not count; "": it does."""

    name: str  # of the experiment: "NLP C-8"
    label: str
    model: str
    run_id: str
    figures: Mapping[str, Measured] = field(default_factory=dict[str, Measured])  # by FIGURES
    learned: Mapping[str, Sequence[Learned]] = field(
        default_factory=dict[str, Sequence[Learned]]
    )  # by LOSSES
    target_batch: float | None = None  # raw
    dropped_rounds: int = 0
    origin: str = "emulated"
    prices: str = ""  # the price book's name
    against: str = (
        ""  # the label of the row that its entry wants to be held against; "": the study's baseline
    )
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of a row; None: unknown. The mean of its runs, and what it is against the baseline's."""

    value: float | None
    n: int = 0  # runs
    ratio: float | None = None
    low: float | None = None  # of the ratio
    high: float | None = None
    n_of: str = ""  # what the interval is over: "runs", "epochs"; "": there is none
    samples: tuple[float, float] | None = (
        None  # of a loss: the least and the most that its runs had learned from
    )
    difference: float | None = None  # of a loss: to the baseline's
    noise: float | None = None  # of a loss: None where the baseline has one run
    within_noise: bool | None = None
    why: str = ""  # a loss is not compared


@dataclass(frozen=True)
class Gain:
    """One row. `against`: the row it is compared with, "" for none; a baseline is compared with itself."""

    name: str
    label: str
    model: str
    runs: tuple[OptionRun, ...]  # all of them
    against: str
    is_baseline: bool
    cells: Mapping[str, Cell]

    @property
    def title(self) -> str:
        """`NLP C-8 wan`."""
        return f"{self.name} {self.label}".strip()

    @property
    def counted(self) -> tuple[OptionRun, ...]:
        """Runs that are in the figures."""
        return tuple(run for run in self.runs if not run.left_out)


@dataclass(frozen=True)
class Gains:
    """All rows of a study. `columns`: the figures that are shown."""

    baseline: str
    columns: tuple[str, ...]
    rows: Sequence[Gain]


_Rows = Mapping[tuple[str, str], Sequence[OptionRun]]


def gains(runs: Sequence[OptionRun], baseline: str) -> list[Gain]:
    """The rows in the order of their first runs. `baseline`: a label."""
    rows: dict[tuple[str, str], list[OptionRun]] = {}
    for run in runs:
        rows.setdefault((run.name, run.label), []).append(run)
    equal = _Equal(runs)
    found: list[Gain] = []
    for (name, label), own in rows.items():
        key = _baseline_of(rows, name, own[0].model, own[0].against or baseline)
        base = rows[key] if key else []
        cells = {figure: _ratio(figure, _counted(own), _counted(base)) for figure in FIGURES}
        cells |= {figure: _loss(equal, figure, _counted(own), _counted(base)) for figure in LOSSES}
        against = " ".join(key).strip() if key else ""
        found.append(Gain(name, label, own[0].model, tuple(own), against, label == baseline, cells))
    return found


def gains_document(found: Gains | None) -> dict[str, Any]:
    """The keys that `orch compare -o json` has of them, whatever is shown; None: the study names no baseline."""
    rows = found.rows if found else ()
    return {
        "baseline": found.baseline if found else None,
        "gains": [
            {
                "experiment": row.name,
                "label": row.label,
                "model": row.model,
                "baseline": row.is_baseline,
                "against": row.against or None,
                "run_ids": [run.run_id for run in row.counted],
                "dropped_rounds": sum(run.dropped_rounds for run in row.counted),
                "left_out": [{"run_id": r.run_id, "why": r.left_out} for r in row.runs if r.left_out],
                "figures": {figure: _cell(row.cells[figure], figure in LOSSES) for figure in row.cells},
            }
            for row in rows
        ],
    }


def _cell(cell: Cell, learned: bool) -> dict[str, Any]:
    if not learned:
        names = ("value", "n", "ratio", "low", "high", "n_of")
        return {name: getattr(cell, name) for name in names}
    least, most = cell.samples or (None, None)
    return {
        "value": cell.value,
        "n": cell.n,
        "samples_least": least,
        "samples_most": most,
        "difference": cell.difference,
        "noise": cell.noise,
        "within_noise": cell.within_noise,
        "why": cell.why,
    }


def _counted(runs: Sequence[OptionRun]) -> list[OptionRun]:
    return [run for run in runs if not run.left_out]


def _baseline_of(rows: _Rows, name: str, model: str, label: str) -> tuple[str, str] | None:
    """The row that a row is compared with; None where there is none, or several would do."""
    if (name, label) in rows:
        return name, label
    of_model = [key for key, runs in rows.items() if key[1] == label and runs[0].model == model]
    return of_model[0] if len(of_model) == 1 else None


def _ratio(figure: str, own: Sequence[OptionRun], base: Sequence[OptionRun]) -> Cell:
    ours, theirs = _values(own, figure), _values(base, figure)
    if not ours:
        return Cell(None)
    value = fmean(ours)
    if not theirs or fmean(theirs) <= 0:
        return Cell(value, len(ours))
    ratio = value / fmean(theirs)
    several = len(ours) > 1 and len(theirs) > 1
    pairs = (ours, theirs) if several else (_epochs(own, figure), _epochs(base, figure))
    spread = quotient_spread(*pairs) if all(sum(values) > 0 for values in pairs) else None
    if spread is None or [run.run_id for run in own] == [run.run_id for run in base]:
        return Cell(value, len(ours), ratio)
    factor = math.exp(spread)
    return Cell(value, len(ours), ratio, ratio / factor, ratio * factor, "runs" if several else "epochs")


def _values(runs: Sequence[OptionRun], figure: str) -> list[float]:
    """Of the runs; none as soon as one is unknown."""
    found = [run.figures[figure].value if figure in run.figures else None for run in runs]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []


def _epochs(runs: Sequence[OptionRun], figure: str) -> list[float]:
    return [value for run in runs for value in run.figures[figure].by_epoch]


class _Equal:
    """Losses after equal samples: each run's record, and by figure, model and target batch at how many samples."""

    def __init__(self, runs: Sequence[OptionRun]) -> None:
        self._samples: dict[tuple[str, str, float | None], float] = {}
        for figure in LOSSES:
            for run in _counted(runs):
                if records := run.learned.get(figure):
                    key = (figure, run.model, run.target_batch)
                    self._samples[key] = min(self._samples.get(key, math.inf), records[-1].samples)

    def learned(self, figure: str, runs: Sequence[OptionRun]) -> list[Learned]:
        """A record of each run; none as soon as one has none."""
        found = [self._at(figure, run) for run in runs]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else []

    def reached(self, figure: str, runs: Sequence[OptionRun]) -> bool:
        """Whether none of these records lies far before the count."""
        return all(
            one is not None
            and one.samples >= self._samples[figure, run.model, run.target_batch] - _slack(run)
            for run in runs
            for one in (self._at(figure, run),)
        )

    def _at(self, figure: str, run: OptionRun) -> Learned | None:
        most = self._samples.get((figure, run.model, run.target_batch), 0.0) + _slack(run)
        return next((one for one in reversed(run.learned.get(figure, ())) if one.samples <= most), None)


def _slack(run: OptionRun) -> float:
    return _OFF * (run.target_batch or 0.0)


def _loss(equal: _Equal, figure: str, own: Sequence[OptionRun], base: Sequence[OptionRun]) -> Cell:
    ours, theirs = equal.learned(figure, own), equal.learned(figure, base)
    if not ours:
        return Cell(None)
    value = fmean(one.loss for one in ours)
    samples = (min(one.samples for one in ours), max(one.samples for one in ours))
    noise = _SPREADS * stdev(one.loss for one in theirs) if len(theirs) > 1 else None
    if not theirs:
        why = "unknown of the baseline" if base else "nothing to compare with"
    elif len({run.target_batch for run in (*own, *base)}) > 1:
        why = "another target batch"
    else:
        why = "" if equal.reached(figure, [*own, *base]) else "not equal samples"
    if why:
        return Cell(value, len(ours), samples=samples, noise=noise, why=why)
    difference = value - fmean(one.loss for one in theirs)
    within = None if noise is None else abs(difference) <= noise
    return Cell(value, len(ours), samples=samples, difference=difference, noise=noise, within_noise=within)
