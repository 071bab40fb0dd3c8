"""Compares runs with the first of them: configuration, figures with the noise between epochs, losses at equal samples. Pure.

Rule for noise: the ratio of a figure of two runs has a 95 % interval by Welch's method over the values of both runs'
measured epochs, on the logarithm (`metrics.stats.quotient_spread`). The difference is beyond noise if that interval does
not contain 1. It is unknown if a run has fewer than two such values, if the values do not vary, or if the host of a run
was too busy. The interval treats epochs as independent and says nothing of what varies from run to run. Throughput, samples
over time, and granularity, the ratio of mean calculation to mean communication, have linearised values (the delta method:
`metrics.stats.ratio_values`).

Losses are compared at the greatest count of samples at which both runs have a record, at most a tenth of the smaller
target batch apart; they are never interpolated. Counts are of samples actually trained on.

Figures on held-out data are those of the last evaluation of each run. The better value is marked for names with a known
meaning (`metrics.events.evaluation.LOWER_IS_BETTER`), if both runs were evaluated on the same samples.

Runs with the same target (`train.until.metric`), evaluated on the same samples, are ranked by the time and the dollars it
took to reach it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from analysis.compare.configuration import Configuration, configuration, differing, same_keys
from analysis.compare.option_figures import Learned, ratio_bounds
from analysis.compare.option_runs import learned_by_run, measured_figure, uncounted_losses
from analysis.replay import ReadRun
from experiments.study_file.baseline import LOSSES
from metrics.epochs.granularity import granularity_of_means, granularity_of_means_values
from metrics.epochs.throughput import measured, throughput_values
from metrics.events.evaluation import LOWER_IS_BETTER
from metrics.figures import COUNTS_AND_SHARES, FIGURES, OF_WHOLE_RUN, RUN_AGAINST_RUN, TO_TARGET
from metrics.learning_curve import Target
from metrics.provenance import RanOn, host_mark, origin_mark
from metrics.run import RunNumbers
from metrics.stats import Estimate, t_interval_half
from metrics.tables import evaluations

_CURVES = ("sps", "comm_s")
_BY_TOKEN = ("loss", "perplexity")  # per token, or per whatever else the model predicts
_SLACK = 0.1  # of the smaller target batch: rounds overshoot the target by some samples
_NO_SPREAD = 1e-9  # relative: less is rounding
_COLUMNS = ("key", "figure", "difference", "95 % interval", "noise")  # of tables with a column per run
_ONE_VALUE = "one value per run; repeat both runs to learn how much it varies"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A run's figure, and a value for each measured epoch for which it is known; none of a figure of the whole run."""

    estimate: Estimate
    by_epoch: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldOutFigures:
    """The figures of a run's last evaluation, and what it was evaluated on."""

    figures: Mapping[str, float]
    epoch: int
    trained_samples: float | None  # up to then, not multiplied back; None: unknown
    samples: int | None  # held-out ones; None: unknown
    shards: str | None  # held-out ones, by URL; None: unknown


@dataclass(frozen=True)
class OwnRun:
    """One run. Figures by key (RUN_AGAINST_RUN), absent where unknown; `learned` by LOSSES; `curves`: (epoch, value)."""

    run_id: str
    experiment: str
    model: str
    status: str
    peers: int
    epochs: int  # measured
    ran: RanOn
    configuration: Configuration
    figures: Mapping[str, ComparedFigure] = field(default_factory=dict[str, ComparedFigure])
    learned: Mapping[str, Sequence[Learned]] = field(default_factory=dict[str, Sequence[Learned]])
    uncounted: frozenset[str] = (
        frozenset()
    )  # LOSSES that were recorded, all after an unknown number of samples
    target_batch: float | None = None  # raw
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(
        default_factory=dict[str, Sequence[tuple[int, float]]]
    )
    host_counts: bool = False  # the user asked to judge runs on a busy host too
    held_out: HeldOutFigures | None = None  # None: not evaluated
    goal: Target | None = None  # the value of a held-out figure that it was to reach

    @property
    def origin(self) -> str:
        """What it ran on: see `metrics.provenance.origin_mark`."""
        return origin_mark(self.ran.target, self.ran.emulated)

    @property
    def host(self) -> str:
        """The load of its host: see `metrics.provenance.host_mark`."""
        return host_mark(self.ran.host_contended, self.ran.target)


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """A figure of one run, against the first run's. `estimate` None: unknown. `why`: why noise (or all) is unknown."""

    estimate: Estimate | None
    difference: float | None = None  # this run's - the first run's
    ratio: float | None = None  # this run's / the first run's
    low: float | None = None  # 95 % interval of the ratio
    high: float | None = None
    beyond_noise: bool | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class LossDifference:
    """A loss of one run and of the first run after equally many samples; None with `why` if they have no such records."""

    figure: str
    run_id: str
    own: Learned | None = None
    first: Learned | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class HeldOutDifference:
    """A held-out figure at the end of one run and of the first run."""

    figure: str
    run_id: str
    value: float
    first: float
    # Whether this run's value is better than the first run's. None: equal, or unknown which is better, or not comparable.
    better: bool | None
    why: str = ""  # why the values cannot be compared

    @property
    def difference(self) -> float:
        """This run's value - the first run's."""
        return self.value - self.first


@dataclass(frozen=True)
class Differences:
    """Runs against the first of them."""

    runs: tuple[OwnRun, ...]

    @property
    def first(self) -> OwnRun:
        """The run that the others are compared with."""
        return self.runs[0]

    @property
    def others(self) -> tuple[OwnRun, ...]:
        return self.runs[1:]

    @property
    def names(self) -> dict[str, str]:
        """A short name by run id: the experiment if the runs' experiments differ, otherwise the id.

        Names are columns of tables, so none is that of another column.
        """
        distinct = len({run.experiment for run in self.runs}) == len(self.runs)
        names = {run.run_id: run.experiment if distinct else run.run_id for run in self.runs}
        return {run_id: f"run {name}" if name in _COLUMNS else name for run_id, name in names.items()}

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that at least one run has; what it took to reach a target only if all have the same one."""
        left_out = TO_TARGET if self.why_not_ranked else ()
        return tuple(
            key
            for key in RUN_AGAINST_RUN
            if key not in left_out and any(key in run.figures for run in self.runs)
        )

    @property
    def why_not_ranked(self) -> str:
        """Why the runs cannot be ranked by what it took to reach a target; "" if they can."""
        goal = self.first.goal
        if any(run.goal != goal for run in self.runs):
            return "the runs have different targets (train.until.metric)"
        if goal is None:
            return "the runs have no target (train.until.metric)"
        unlike = (one for one in self.held_out() if one.figure == goal.name and one.why)
        return next((f"{one.run_id}: {one.why}" for one in unlike), "")

    def ranking(self, key: str) -> tuple[OwnRun, ...]:
        """The runs that reached the common target, by a figure of TO_TARGET, least first; () if it is not comparable."""
        if self.why_not_ranked:
            return ()
        known = [run for run in self.runs if key in run.figures]
        return tuple(sorted(known, key=lambda run: run.figures[key].estimate.value))

    def figure(self, key: str, run: OwnRun) -> FigureDifference:
        """Compare a figure of a run with the first run's."""
        return _figure(key, run, self.first)

    def losses(self) -> list[LossDifference]:
        """Compare each loss that some run recorded, of each run but the first."""
        recorded = [name for name in LOSSES if any(run.learned.get(name) for run in self.runs)]
        return [_loss(name, run, self.first) for name in recorded for run in self.others]

    def held_out(self) -> list[HeldOutDifference]:
        """Compare each figure of the last evaluation that the first run and another one have."""
        if self.first.held_out is None:
            return []
        return [
            _held_out(name, run, run.held_out, self.first.held_out, self.first.model)
            for name in self.first.held_out.figures
            for run in self.others
            if run.held_out is not None and name in run.held_out.figures
        ]

    def unevaluated(self) -> list[tuple[str, str]]:
        """Run ids, and why a held-out figure of the run is not compared. Empty if no run was evaluated."""
        if not any(run.held_out for run in self.runs):
            return []
        found = [(run.run_id, "no evaluation on held-out data") for run in self.runs if run.held_out is None]
        first = self.first.held_out
        if first is None:
            return found
        for run in self.others:
            if run.held_out is None:
                continue
            own = run.held_out.figures
            if lacking := [name for name in first.figures if name not in own]:
                found.append((run.run_id, f"no held-out {', '.join(lacking)}"))
            if more := [name for name in own if name not in first.figures]:
                found.append((self.first.run_id, f"no held-out {', '.join(more)}"))
        return list(dict.fromkeys(found))

    def curve_rows(self) -> list[dict[str, Any]]:
        """The points of the curves: losses by samples trained on, and figures by epoch."""
        rows: list[dict[str, Any]] = []
        for name in LOSSES:
            for run in self.runs:
                for one in run.learned.get(name, ()):
                    rows.append(
                        _point(self, FIGURES[name].name, "samples trained on", run, one.samples, one.loss)
                    )
        for key in _CURVES:
            for run in self.runs:
                for epoch, value in run.curves.get(key, ()):
                    rows.append(_point(self, FIGURES[key].words, "epoch", run, epoch, value))
        return [row for row in rows if math.isfinite(row["y"])]  # of a run that diverged


def own_run(read: ReadRun, include_contended: bool = False) -> OwnRun:
    """Return what is compared of a run. `include_contended`: judge it although its host was too busy."""
    run, row = read.run, read.row
    meta, epochs = run.meta, measured(run.study)
    target = run.terms.raw_target
    figures: dict[str, ComparedFigure] = {}
    for key in RUN_AGAINST_RUN:
        by_epoch = _by_epoch(key, run)
        estimate = _estimate(key, read, by_epoch)
        if estimate is not None and math.isfinite(estimate.value):
            figures[key] = ComparedFigure(estimate, by_epoch)
    curves = {
        key: tuple((e.epoch, v) for e in epochs if (v := FIGURES[key].value(run, e)) is not None)
        for key in _CURVES
    }
    return OwnRun(
        run_id=row.run_id,
        experiment=str(meta.label or meta.document.get("name") or row.run_id),
        model=(meta.model and meta.model.name) or "unknown model",
        status=meta.status or "unknown",
        peers=row.peers,
        epochs=len(epochs),
        ran=row.ran,
        configuration=configuration(meta),
        figures=figures,
        learned=learned_by_run(run.raw, run.evaluation_rows),
        uncounted=uncounted_losses(run.raw, run.evaluation_rows),
        target_batch=None if target is None else float(target),
        curves=curves,
        host_counts=include_contended,
        held_out=_last_evaluation(run),
        goal=run.target,
    )


def differences_document(found: Differences | None) -> dict[str, Any] | None:
    """Return the key `differences` of `orch compare -o json`; None if runs are not compared with each other."""
    if found is None:
        return None
    configurations = [run.configuration for run in found.runs]
    ids = [run.run_id for run in found.runs]
    return {
        "against": found.first.run_id,
        "runs": [
            {
                "run_id": run.run_id,
                "experiment": run.experiment,
                "model": run.model,
                "status": run.status,
                "peers": run.peers,
                "epochs": run.epochs,
                "target": run.ran.target,
                "origin": run.origin,
                "host_contended": run.ran.host_contended,
                "configuration_known": run.configuration.whole,
            }
            for run in found.runs
        ],
        "same_keys": same_keys(configurations),
        "configuration": [
            {
                "key": row.key,
                "values": [
                    {"run_id": run_id, "value": value, "present": present if known else None}
                    for run_id, value, present, known in zip(
                        ids, row.values, row.present, row.known, strict=True
                    )
                ],
            }
            for row in differing(configurations)
        ],
        "figures": [
            {
                "figure": key,
                "unit": FIGURES[key].stored_unit,
                "values": [{"run_id": run.run_id, **_document(found.figure(key, run))} for run in found.runs],
            }
            for key in found.figures
        ],
        "losses": [
            {
                "figure": one.figure,
                "run_id": one.run_id,
                "value": one.own and one.own.loss,
                "samples": one.own and one.own.samples,
                "against": one.first and one.first.loss,
                "against_samples": one.first and one.first.samples,
                "difference": one.own.loss - one.first.loss if one.own and one.first else None,
                "why": one.why,
            }
            for one in found.losses()
        ],
        "evaluation": [
            {
                "figure": one.figure,
                "run_id": one.run_id,
                "value": one.value,
                "against": one.first,
                "difference": one.difference,
                "better": one.better,
                "why": one.why,
            }
            for one in found.held_out()
        ],
        "not_evaluated": [{"run_id": run_id, "why": why} for run_id, why in found.unevaluated()],
        "target": None
        if found.first.goal is None or found.why_not_ranked
        else {
            **asdict(found.first.goal),
            **{key: [r.run_id for r in found.ranking(key)] for key in TO_TARGET},
        },
    }


def equal_samples(
    own: Sequence[Learned], first: Sequence[Learned], slack: float
) -> tuple[Learned, Learned] | None:
    """Return the last pair of records whose counts of samples are at most `slack` apart."""
    pairs = [(a, b) for a in own for b in first if abs(a.samples - b.samples) <= slack]
    return max(
        pairs,
        key=lambda pair: (min(p.samples for p in pair), -abs(pair[0].samples - pair[1].samples)),
        default=None,
    )


def _figure(key: str, run: OwnRun, first: OwnRun) -> FigureDifference:
    own = run.figures.get(key)
    if own is None:
        return FigureDifference(None, why=f"unknown for {run.run_id}")
    if run is first:
        return FigureDifference(own.estimate)
    theirs = first.figures.get(key)
    if theirs is None:
        return FigureDifference(own.estimate, why=f"unknown for {first.run_id}")
    difference = own.estimate.value - theirs.estimate.value
    if theirs.estimate.value <= 0 or key in COUNTS_AND_SHARES:
        why = _ONE_VALUE if key in OF_WHOLE_RUN else f"{first.run_id} has 0, so there is no ratio"
        return FigureDifference(own.estimate, difference, why=why)
    ratio = own.estimate.value / theirs.estimate.value
    if key in OF_WHOLE_RUN:
        return FigureDifference(own.estimate, difference, ratio, why=_ONE_VALUE)
    for one, each in ((run, own), (first, theirs)):
        if len(each.by_epoch) < 2:
            return FigureDifference(
                own.estimate, difference, ratio, why=f"{one.run_id} has fewer than two measured epochs"
            )
    bounds = ratio_bounds(ratio, own.by_epoch, theirs.by_epoch)
    if bounds is None or bounds[1] / bounds[0] - 1 < _NO_SPREAD:
        return FigureDifference(own.estimate, difference, ratio, why="the epochs do not vary")
    busy = [one.run_id for one in (run, first) if one.ran.host_contended and not one.host_counts]
    if busy:
        return FigureDifference(
            own.estimate, difference, ratio, *bounds, why=f"the host of {' and '.join(busy)} was too busy"
        )
    return FigureDifference(
        own.estimate, difference, ratio, *bounds, beyond_noise=not bounds[0] <= 1 <= bounds[1]
    )


def _loss(name: str, run: OwnRun, first: OwnRun) -> LossDifference:
    own, theirs = run.learned.get(name, ()), first.learned.get(name, ())
    without = [one for one, records in ((run, own), (first, theirs)) if not records]
    if without:
        none = " and ".join(one.run_id for one in without if name not in one.uncounted)
        uncounted = " and ".join(one.run_id for one in without if name in one.uncounted)
        why = [
            *([f"{none} recorded none"] if none else []),
            *([f"the number of samples before the losses of {uncounted} is unknown"] if uncounted else []),
        ]
        return LossDifference(name, run.run_id, why="; ".join(why))
    if run.model != first.model:
        return LossDifference(name, run.run_id, why=f"another model: {run.model} and {first.model}")
    pair = equal_samples(own, theirs, _SLACK * min(run.target_batch or 0.0, first.target_batch or 0.0))
    if pair is None:
        last = " and ".join(f"{one[-1].loss:.4f} after {one[-1].samples:,.0f}" for one in (own, theirs))
        return LossDifference(
            name, run.run_id, why=f"no two records after equally many samples; the last: {last}"
        )
    return LossDifference(name, run.run_id, *pair)


def _last_evaluation(run: RunNumbers) -> HeldOutFigures | None:
    rows = evaluations(run)
    if not rows:
        return None
    last, data = rows[-1], run.meta.document.get("data")
    return HeldOutFigures(
        figures=last["figures"],
        epoch=last["epoch"],
        trained_samples=last["raw_trained_samples"],
        samples=last["samples"],
        shards=" at ".join(filter(None, (data.get("heldout"), data.get("endpoint")))) or None
        if data
        else None,
    )


def _held_out(
    name: str, run: OwnRun, own: HeldOutFigures, first: HeldOutFigures, first_model: str
) -> HeldOutDifference:
    value, other = own.figures[name], first.figures[name]
    why = ""
    if None not in (own.shards, first.shards) and own.shards != first.shards:
        why = f"other held-out shards: {own.shards} and {first.shards}"
    elif None not in (own.samples, first.samples) and own.samples != first.samples:
        why = f"other held-out samples: {own.samples} and {first.samples} of them"
    elif name in _BY_TOKEN and run.model != first_model:
        why = f"another model: {run.model} and {first_model}"
    lower = LOWER_IS_BETTER.get(name)
    judged = not why and lower is not None and value != other
    return HeldOutDifference(
        name, run.run_id, value, other, (value < other) == lower if judged else None, why
    )


def _by_epoch(key: str, run: RunNumbers) -> tuple[float, ...]:
    if key in OF_WHOLE_RUN:
        return ()
    if key == "granularity_of_means":
        return tuple(granularity_of_means_values(run.study))
    if key == "sps":
        return tuple(throughput_values(run.study))
    return measured_figure(run, FIGURES[key]).by_epoch


def _estimate(key: str, read: ReadRun, by_epoch: Sequence[float]) -> Estimate | None:
    """The figure as `orch replay` has it; of bytes and dollars with the interval of its values by epoch."""
    if key == "granularity_of_means":  # no column of a replay
        return granularity_of_means(read.run.study)
    if FIGURES[key].of_epochs is not None:  # of a single GPU without a swarm the rate by wall clock
        return read.row.figures.get(key) or (read.row.figures.get("sps_wall") if key == "sps" else None)
    value = FIGURES[key].value(read.run)
    if value is None or key in OF_WHOLE_RUN:
        return None if value is None else Estimate(value, None, None, 1)
    half = t_interval_half(by_epoch)
    ends = (None, None) if half is None else (value - half, value + half)
    return Estimate(value, *ends, len(by_epoch))


def _document(found: FigureDifference) -> dict[str, Any]:
    estimate = found.estimate
    return {
        "value": estimate and estimate.value,
        "low": estimate and estimate.low,
        "high": estimate and estimate.high,
        "n": estimate and estimate.n,
        "difference": found.difference,
        "ratio": found.ratio,
        "ratio_low": found.low,
        "ratio_high": found.high,
        "beyond_noise": found.beyond_noise,
        "why": found.why,
    }


def _point(found: Differences, panel: str, x_label: str, run: OwnRun, x: float, y: float) -> dict[str, Any]:
    return {
        "panel": panel,
        "x_label": x_label,
        "name": found.names[run.run_id],
        "run_id": run.run_id,
        "x": x,
        "y": y,
    }
