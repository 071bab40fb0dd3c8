"""Reads the figures by which a study's options are compared from a run's records.

All figures are at full scale, except the numbers of samples trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from analysis.compare.option_figures import FIGURES, Learned, Measured, OptionRun
from analysis.compare.published import ComparedRun, why_not
from analysis.compare.published_runs import LOOPBACK
from cloud.targets import target_of
from metrics.epochs.throughput import SwarmEpoch, measured, samples_until
from metrics.figures import Figure, compared_figure
from metrics.run import RunNumbers


def option_run(
    run: RunNumbers, row: ComparedRun, label: str, include_contended: bool = False, against: str = ""
) -> OptionRun:
    """Return a run as an option. `row`: the same run in the comparison with the paper. `against`: a label.

    A run on loopback does not count, nor does one whose host was too busy, unless `include_contended`.
    """
    # Options are what is compared here, so using one does not exclude a run.
    busy = replace(row, not_judged=LOOPBACK if not target_of(row.target).emulates_distance else "")
    target, model = run.terms.raw_target, run.meta.model
    return OptionRun(
        name=row.experiment.removesuffix(f" {label}") if label else row.experiment,
        label=label,
        model=(model and model.name) or "unknown model",
        run_id=row.run_id,
        figures=option_figures(run),
        learned=learned_by_run(run.raw, run.evaluation_rows),
        uncounted=uncounted_losses(run.raw, run.evaluation_rows),
        target_batch=None if target is None else float(target),
        dropped_rounds=row.dropped_rounds or 0,
        origin="emulated" if run.meta.emulated else "own",
        prices=run.terms.book.name if run.terms.book else "no price book",
        left_out=why_not(busy, include_contended),
        against=against,
        experiment=str(run.meta.document.get("name") or ""),
        target=row.target,
        scales=row.scales,
        host_contended=row.host_contended,
    )


def option_figures(run: RunNumbers) -> dict[str, Measured]:
    """Compute the compared figures, over all measured epochs and for each of them."""
    return {key: measured_figure(run, compared_figure(key)) for key in FIGURES}


def measured_figure(run: RunNumbers, figure: Figure) -> Measured:
    """Compute one figure, over all measured epochs and for each of them."""
    each = [figure.value(run, epoch) for epoch in measured(run.study)]
    return Measured(figure.value(run), tuple(v for v in each if v is not None and math.isfinite(v)))


def learned_by_run(
    raw: Sequence[SwarmEpoch], evaluations: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[Learned, ...]]:
    """Return training losses by epoch and held-out losses, each with the number of samples trained on up to then.

    Both end at the first incomplete or missing epoch, because the sum of samples is unknown from there on. Unknown
    losses are skipped. `evaluations` are those of all peers; the mean over the peers is used.
    """
    samples = samples_until(raw)
    training = [Learned(samples[e.epoch], e.loss) for e in raw if e.epoch in samples and e.loss is not None]
    heldout: dict[int, list[float]] = {}
    for row in evaluations:
        if row.get("loss") is not None and row.get("epoch") in samples:
            heldout.setdefault(int(row["epoch"]), []).append(float(row["loss"]))
    return {
        "loss": tuple(training),
        "heldout_loss": tuple(Learned(samples[e], fmean(found)) for e, found in sorted(heldout.items())),
    }


def uncounted_losses(raw: Sequence[SwarmEpoch], evaluations: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the losses that were recorded, but of which `learned_by_run` has none: their numbers of samples are unknown."""
    recorded = {
        "loss": any(e.loss is not None for e in raw),
        "heldout_loss": any(row.get("loss") is not None for row in evaluations),
    }
    learned = learned_by_run(raw, evaluations)
    return frozenset(name for name, found in recorded.items() if found and not learned[name])
