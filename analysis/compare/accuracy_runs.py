"""The held-out accuracy of runs, read from their folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis.compare.accuracy import AccuracyComparison, HeldOutRun, Side
from metrics.epochs.throughput import dropped_rounds
from metrics.events.evaluation import held_out
from metrics.run import RunNumbers
from metrics.store.database import RunStore


def held_out_run(folder: Path) -> HeldOutRun:
    """One run of a folder with `run.db`. Raises metrics.store.database.StoreError."""
    with RunStore.open_reader(folder / "run.db") as store:
        run = RunNumbers.of(store)
    experiment = run.meta.document
    found, target = held_out(run.meta.evaluations), run.meta.raw_target_batch_size
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
    folders: Iterable[Path], of: str, against: str, include_contended: bool = False
) -> AccuracyComparison:
    """The runs of two experiments, by the experiments' names. Raises metrics.store.database.StoreError."""
    runs = [held_out_run(folder) for folder in folders]
    sides = (
        Side(name, tuple(r for r in runs if r.experiment == name), include_contended)
        for name in (of, against)
    )
    return AccuracyComparison(*sides)
