"""Reads a held-out figure of runs from their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.compare.held_out import HeldOutComparison, HeldOutRun, Side
from metrics.epochs.throughput import dropped_rounds
from metrics.events.evaluation import evaluations_of
from metrics.run import RunNumbers


def held_out_run(run: RunNumbers, figure: str) -> HeldOutRun:
    """Return a figure of one run's last evaluation that has it, and what was trained on up to that evaluation."""
    experiment = run.meta.document
    known = [one for one in evaluations_of(run.evaluation_rows) if figure in one.figures]
    found, target = known[-1] if known else None, run.meta.raw_target_batch_size
    samples = None
    if found is not None:
        epochs = [e for e in run.raw if e.epoch <= found.epoch]
        if [e.epoch for e in epochs] == list(range(1, found.epoch + 1)):
            samples = round(sum(e.samples for e in epochs))
    return HeldOutRun(
        experiment=str(experiment.get("name") or ""),
        run_id=str(run.meta.run_id),
        seed=experiment.get("seed"),
        value=None if found is None else found.figures[figure],
        updates=None if found is None else found.epoch,
        target_batch_size=None if target is None else int(target),
        samples=samples,
        heldout_samples=None if found is None else found.samples,
        host_contended=run.meta.host_contended,
        dropped_rounds=len(dropped_rounds(run.raw)),
        target=run.meta.target,
        emulated=run.meta.emulated,
    )


def compare_held_out(
    runs: Iterable[RunNumbers],
    of: str,
    against: str,
    figure: str = "accuracy",
    include_contended: bool = False,
) -> HeldOutComparison:
    """Compare the runs of two experiments, selected by the experiments' names."""
    found = [held_out_run(run, figure) for run in runs]
    ours, theirs = (
        Side(name, tuple(r for r in found if r.experiment == name), include_contended)
        for name in (of, against)
    )
    return HeldOutComparison(ours, theirs, figure)
