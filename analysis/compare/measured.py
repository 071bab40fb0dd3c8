"""Runs of an experiment for which there is advice: what they measured, and what their plans predicted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.compare.run_figures import StudyRun, study_run
from analysis.replay import read_folder
from metrics.predicted import pairs
from metrics.provenance import host_mark
from metrics.store.database import RunStore, StoreError
from metrics.store.meta import RunMeta

MOST = 12
"""Runs that are read, the newest."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with measured epochs. `predicted`: `metrics.predicted.pairs`, by what its plan predicted."""

    run: StudyRun
    experiment: str
    status: str
    host: str  # `metrics.provenance.host_mark`
    predicted: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """Runs of an experiment and its proposals. `left_out`: run ids with the reason."""

    runs: tuple[Measured, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def measured_runs(
    folders: Iterable[Path], experiment: str, model: str, target_batch_size: int
) -> MeasuredRuns:
    """Read the runs (folders, the newest first) of an experiment, or of its proposals (`NAME-a1`), of a model.

    Those of other experiments are not mentioned.
    """
    runs: list[Measured] = []
    left_out: list[tuple[str, str]] = []
    title = re.compile(rf"{re.escape(experiment)}|{re.escape(experiment[:36].rstrip('-'))}-a\d+")
    for folder in folders:
        try:
            with RunStore.open_reader(folder / "run.db") as store:
                meta = store.run_meta()
            name = str(meta.document.get("name") or "")
            if not title.fullmatch(name) or meta.imported:
                continue
            if reason := _other(meta, model, target_batch_size):
                left_out.append((folder.name, reason))
            elif len(runs) == MOST:
                left_out.append((folder.name, f"older than the {MOST} that are shown"))
            else:
                read = read_folder(folder)
                run = study_run(read.row, read.run)
                if run.value("sps") is None:
                    left_out.append((folder.name, "no measured epoch"))
                else:
                    host = host_mark(meta.host_contended, meta.target)
                    runs.append(Measured(run, name, str(meta.status), host, tuple(pairs(read.run))))
        except StoreError as error:
            left_out.append((folder.name, f"cannot be read: {error}"))
    return MeasuredRuns(tuple(runs), tuple(left_out))


def _other(meta: RunMeta, model: str, target_batch_size: int) -> str:
    """Why a run of this name is not of this experiment; "" if it is."""
    trained = meta.model.name if meta.model else None
    if trained != model:
        return f"it trained {trained or 'an unknown model'}, not {model}"
    if meta.target_batch_size != target_batch_size:
        return f"its target batch size is {meta.target_batch_size or 'unknown'}, not {target_batch_size}"
    return ""
