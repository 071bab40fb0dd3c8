"""The figures by which a study's options are compared, from a run's records. All at the study's scale but the samples learned."""

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
from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.figures import compared_figure
from metrics.run import RunNumbers


def option_run(
    run: RunNumbers, row: ComparedRun, label: str, include_contended: bool = False, against: str = ""
) -> OptionRun:
    """A run as an option. `row`: the same run as it is compared otherwise. `against`: a label.

    It does not count where its host was too busy, unless asked for, and without distance.
    """
    # An option is what is looked for here, so it alone takes no run out.
    busy = replace(row, not_judged=LOOPBACK if not target_of(row.target).has_distance else "")
    target, model = run.terms.raw_target, run.meta.model
    return OptionRun(
        name=row.experiment.removesuffix(f" {label}") if label else row.experiment,
        label=label,
        model=(model and model.name) or "unknown model",
        run_id=row.run_id,
        figures=option_figures(run),
        learned=learned_by_run(run.raw, run.meta.evaluations),
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
    """The figures by which options are compared, of the measured epochs together and of each alone.

    Throughput is the mean of the epochs' rates.
    """
    epochs = measured(run.study)
    found: dict[str, Measured] = {}
    for key in FIGURES:
        figure = compared_figure(key)
        each = [figure.value(run, epoch) for epoch in epochs]
        known = tuple(value for value in each if value is not None and math.isfinite(value))
        found[key] = Measured(figure.value(run), known)
    return found


def learned_by_run(
    raw: Sequence[SwarmEpoch], evaluations: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[Learned, ...]]:
    """The training loss of each epoch and the held-out loss after some, by how many samples were learned from by then.

    Both end at the first epoch whose own count, or whose predecessor, is missing: the sum is unknown from there on. A
    loss that is not known leaves its record out. `evaluations`: of the peers; their mean counts.
    """
    samples: dict[int, float] = {}
    total = 0.0
    for expected, epoch in enumerate(sorted(raw, key=lambda one: one.epoch), 1):
        if epoch.epoch != expected or not epoch.complete:
            break
        total += epoch.samples
        samples[epoch.epoch] = total
    training = [Learned(samples[e.epoch], e.loss) for e in raw if e.epoch in samples and e.loss is not None]
    heldout: dict[int, list[float]] = {}
    for row in evaluations:
        if row.get("loss") is not None and row.get("epoch") in samples:
            heldout.setdefault(int(row["epoch"]), []).append(float(row["loss"]))
    return {
        "loss": tuple(training),
        "heldout_loss": tuple(Learned(samples[e], fmean(found)) for e, found in sorted(heldout.items())),
    }
