"""Reads the held-out accuracy of runs from their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.compare.accuracy import AccuracyComparison, HeldOutRun, Side
from metrics.epochs.throughput import dropped_rounds
from metrics.events.evaluation import held_out
from metrics.run import RunNumbers


def held_out_run(run: RunNumbers) -> HeldOutRun:
    """Return one run's accuracy and what it was trained on up to that evaluation."""
    experiment = run.meta.document
    found, target = held_out(run.evaluation_rows), run.meta.raw_target_batch_size
    samples = None
    if found is not None:
        epochs = [e for e in run.raw if e.epoch <= found.epoch]
        if [e.epoch for e in epochs] == list(range(1, found.epoch + 1)):
            samples = round(sum(e.samples for e in epochs))
    return HeldOutRun(
        experiment=str(experiment.get("name") or ""),
        run_id=str(run.meta.run_id),
        seed=experiment.get("seed"),
        accuracy=None if found is None else found.accuracy,
        loss=None if found is None else found.loss,
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
    runs: Iterable[RunNumbers], of: str, against: str, include_contended: bool = False
) -> AccuracyComparison:
    """Compare the runs of two experiments, selected by the experiments' names."""
    found = [held_out_run(run) for run in runs]
    sides = (
        Side(name, tuple(r for r in found if r.experiment == name), include_contended)
        for name in (of, against)
    )
    return AccuracyComparison(*sides)
