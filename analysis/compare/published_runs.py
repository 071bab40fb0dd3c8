"""Collects a run's own figures, the published ones of the same experiment, and those replayed from the paper's logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.compare.paper import printed_figure, run_name
from analysis.compare.published import COMPARED, ComparedRun
from analysis.replay import ReadRun, RunRow, read_folder
from analysis.sources import opened
from cloud.targets import target_of
from experiments.catalog import Published
from experiments.parse.load import from_document
from experiments.schema.errors import SpecError
from experiments.study_file.basis import Basis, paper_basis
from metrics.epochs.throughput import dropped_rounds
from metrics.figures import compared_figure
from metrics.more_peers import of_run
from metrics.predicted import pairs
from metrics.tables import evaluations

LOOPBACK = "loopback: no distance"
"""Why a run on loopback is neither ranked nor judged."""


def compared_run(
    read: ReadRun,
    replayed: Mapping[str, Mapping[str, float | None]],
    label: str = "",
    attempts: int = 1,
    judged: bool | None = None,
) -> ComparedRun:
    """Return one run with the published and replayed figures of the same experiment.

    `replayed`: figures by the published run's name (`replayed_figures`). `label` distinguishes runs of one experiment.
    `judged`: whether the run is judged against the paper; None: only without a label and without options that the
    paper did not use. A run on loopback is never judged.
    """
    run, row = read.run, read.row
    own = str(run.meta.document.get("name") or row.label)
    basis = _basis(run.meta.experiment)
    known = basis.published
    name = run_name(known) if known else own
    contended = run.meta.host_contended
    return ComparedRun(
        experiment=f"{name} {label}".strip(),
        run_id=row.run_id,
        published=published_figures(known),
        emulated=figures_of(row),
        replayed=replayed.get(name) if known else None,
        host_contended=None if contended is None else bool(contended),
        dropped_rounds=len(dropped_rounds(run.raw)),
        attempts=attempts,
        epoch_sps=known.epoch_sps if known else (),
        not_judged=_not_judged(basis, label, judged, run.meta.target),
        target=run.meta.target,
        is_emulated=run.meta.emulated,
        scales=row.ran.scales,
        evaluation=evaluated[-1]["figures"] if (evaluated := evaluations(run)) else None,
        predicted=tuple(pairs(run)),
        more_peers=of_run(run),
    )


def _basis(experiment: Any) -> Basis:
    try:
        return paper_basis(from_document(dict(experiment)))
    except (SpecError, TypeError, ValueError):
        return Basis(
            None, "the run has no complete experiment stored, so it is unknown whether it is the paper's"
        )


def _not_judged(basis: Basis, label: str, judged: bool | None, target: str | None) -> str:
    if basis.published is None:
        return basis.why
    if not target_of(target).emulates_distance:
        return LOOPBACK
    if judged is False:
        return "its entry has `judged: false`"
    if judged:
        return ""
    if basis.options:
        return f"uses {', '.join(basis.options)}, which the paper did not"
    return f"the label '{label}' marks an option (if not, set `judged: true` in its entry)" if label else ""


def published_figures(known: Published | None) -> dict[str, float | None]:
    """Return the paper's figures by our names and in our units; granularity and rates by wall clock."""
    if known is None:
        return {}
    return {key: printed_figure(known, compared_figure(key)) for key in COMPARED}


def figures_of(row: RunRow) -> dict[str, float | None]:
    """Return a run's figures on the published basis: throughput is the mean of the epochs' rates, or a single GPU's
    wall-clock rate.
    """
    found = {key: row.value(compared_figure(key).key) for key in COMPARED}
    if found["sps"] is None:
        found["sps"] = row.value("sps" if "sps" in row.figures else "sps_wall")
    return found


def replayed_figures(logs: Path) -> tuple[dict[str, dict[str, float | None]], tuple[str, ...]]:
    """Replay a folder of logs: figures by the runs' labels ("NLP B-8"), and the problems.

    Raises analysis.importers.base.ImportFailed if no run can be read.
    """
    with opened([logs]) as found:
        rows = [read_folder(source.folder).row for source in found.runs]
        return {row.label: figures_of(row) for row in rows if row.label}, found.problems
