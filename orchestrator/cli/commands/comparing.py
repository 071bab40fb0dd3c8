"""Resolve the runs and studies to compare: their numbers, the limits, the paper's logs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.compare.differences import Differences, own_run
from analysis.compare.expectations import Listed, judge_expected
from analysis.compare.held_out_runs import compare_held_out
from analysis.compare.option_figures import OptionRun
from analysis.compare.option_runs import option_run
from analysis.compare.options import Gains, gains
from analysis.compare.published import ComparedRun
from analysis.compare.published_runs import compared_run, replayed_figures
from analysis.importers.base import ImportFailed
from analysis.replay import ReadRun, read_folder
from analysis.report.study.comparison import Compared
from experiments.schema.models import Task
from experiments.study_file.expectations import Expectation
from experiments.study_file.limits import Limit, read_limits
from experiments.study_file.load import STUDIES, load_study, studies
from metrics.run import RunNumbers
from metrics.store.database import StoreError
from orchestrator.cli.render.terminal import say
from orchestrator.errors import UsageError
from orchestrator.home import list_runs, resolve_run, run_folder
from orchestrator.study.core import JobState, StudyState
from orchestrator.study.definition import (
    StudyDefinition,
    find_study_folder,
    read_state,
    read_study,
    studies_folder,
)

_NO_LIMITS = "none"


class _Entry(NamedTuple):
    """What a study records about a run."""

    label: str = ""
    attempts: int = 1
    judged: bool | None = None
    against: str = ""


@dataclass
class BlobRequest:
    """What to compare, with each run once."""

    study: str | None = None  # the id, if a single study is compared
    runs: dict[Path, _Entry] = field(default_factory=dict)  # by folder
    missing: dict[str, str] = field(default_factory=dict)  # by experiment: why it has no run
    replay: str = "auto"
    limits: str = ""  # file; "": do not judge
    held_out: Mapping[str, str] | None = (
        None  # {"figure", "of", "against"}: a held-out figure of which experiments is compared
    )
    baseline: str = ""  # label of the entry with which the others are compared
    columns: tuple[str, ...] = ()  # figures of the gains
    listed: list[tuple[Listed, Path | None]] = field(default_factory=list)  # row and run folder of each job
    expect: tuple[Expectation, ...] = ()
    whole: bool = False  # all runs that the limits are for

    @property
    def folders(self) -> list[Path]:
        return list(self.runs)


def wanted_runs(home: Path, targets: Sequence[str]) -> BlobRequest:
    """Resolve the command line arguments to runs and studies. Raises UsageError."""
    found = BlobRequest(limits=str(STUDIES / "paper-abc-limits.csv"))
    runs = set(list_runs(home))
    for text in targets:
        folder = None if text in runs or text == "latest" else find_study_folder(home, text)
        if folder is None:
            try:
                found.runs.setdefault(run_folder(home, resolve_run(home, text)), _Entry())
            except UsageError as error:
                if text in studies():
                    message = f"{text}: this shipped study has not been run here yet; run it with `orch study run {text}`"
                    raise UsageError(message) from error
                raise UsageError(
                    f"{error}; there is no study of that name either (`orch study ls`)"
                ) from error
            continue
        definition = read_study(folder)
        whole = wanted_study(home, definition, read_state(folder, definition))
        if len(targets) == 1:
            return whole
        found.runs |= whole.runs  # the study's entry replaces that of a run that was also named by itself
        found.missing |= whole.missing
    return found


def wanted_study(home: Path, study: StudyDefinition, state: StudyState) -> BlobRequest:
    """Collect a study's runs that have numbers, and the reasons why the others have none."""
    limits = study.compare["limits"]
    own = str(studies_folder(home) / study.study_id / limits) if limits else ""
    held_out = study.compare.get("held_out") or study.compare.get("accuracy")  # of an older orch
    found = BlobRequest(study.study_id, replay=study.compare["replay"], limits=own, held_out=held_out)
    found.baseline = study.compare.get("baseline", "")
    found.columns = tuple(study.compare.get("columns", ()))
    found.whole = not study.part
    found.expect = tuple(Expectation.model_validate(one) for one in study.compare.get("expect", ()))
    for one in state.jobs:
        job, folder, missing = one.job, None, ""
        if one.result is None:
            found.missing[job.key] = missing = _why(one, state)
            found.whole = False
        else:
            folder = run_folder(home, one.result.run_id)
            found.runs[folder] = _Entry(job.label, len(one.counted), job.judged, job.against)
        document = study.documents[job.key]
        task = document.get("task")
        model = str(document.get("model")) if task is None else Task.model_validate(task).title
        found.listed.append((Listed(job.experiment, job.label, model, job.against, missing), folder))
    return found


def compare_wanted(wanted: BlobRequest, logs: Path | None, limits: str, include_contended: bool) -> Compared:
    """Read and compare. `limits`: a file that overrides `wanted.limits`, or "none". Raises UsageError, ImportFailed."""
    replayed = _replayed(wanted, logs)
    rows: list[ComparedRun] = []
    options: list[OptionRun] = []
    readable: list[RunNumbers] = []
    compared: list[ReadRun] = []
    whole = wanted.whole or bool(
        limits and wanted.study is None
    )  # limits given for these runs are for them all
    for folder, entry in wanted.runs.items():
        try:
            read = read_folder(folder)
        except StoreError as error:
            wanted.missing[folder.name] = f"cannot be read: {error}"
            whole = False
            continue
        readable.append(read.run)
        row = compared_run(read, replayed, entry.label, entry.attempts, entry.judged)
        if row.emulated["sps"] is None:
            wanted.missing[folder.name] = "no measured epoch"
            whole = False
        else:
            rows.append(row)
            compared.append(read)
            if wanted.baseline:
                options.append(option_run(read.run, row, entry.label, include_contended, entry.against))
    alike = None
    if wanted.held_out:
        alike = compare_held_out(readable, **wanted.held_out, include_contended=include_contended)
    gained = _gained(wanted, options) if wanted.baseline else None
    asked = limits_of(limits or wanted.limits)
    found = Compared(rows, asked, wanted.missing, include_contended, alike, gained, whole=whole)
    several = wanted.study is None and len(rows) > 1
    if rows and not wanted.baseline and (several or not found.published):
        own = tuple(own_run(read, include_contended) for read in compared)
        return replace(found, differences=Differences(own))
    return found


def expected_of(study: str) -> tuple[Expectation, ...]:
    """Expectations of a study given by file or name; none for "none". Raises SpecError."""
    return () if study == _NO_LIMITS else load_study(study).spec.compare.expect


def _gained(wanted: BlobRequest, options: Sequence[OptionRun]) -> Gains:
    """Compute the gains and the verdicts on them."""
    listed = [
        replace(one, missing=wanted.missing.get(folder.name, "")) if folder else one
        for one, folder in wanted.listed
    ]
    verdicts = judge_expected(wanted.expect, listed, options, wanted.baseline)
    return Gains(wanted.baseline, wanted.columns, gains(options, wanted.baseline), verdicts)


def _why(one: JobState, state: StudyState) -> str:
    if one.open is not None:
        return f"run {one.open.run_id} has not ended"
    if not one.settled(state.retries) or not one.counted:
        return "not run yet"
    end = one.counted[-1].end
    assert end is not None
    return f"{end.status.replace('_', ' ')}{f': {end.error}' if end.error else ''}"


def _replayed(wanted: BlobRequest, logs: Path | None) -> dict[str, Any]:
    """Replay the paper's logs from `logs`, else from ORCH_SHARED if there are any."""
    shared = os.environ.get("ORCH_SHARED", "")
    found = logs or Path(shared) / "paper-traces"
    if logs is None and (not shared or wanted.replay == "never" or not found.is_dir()):
        return {}
    try:
        figures, problems = replayed_figures(found)
    except ImportFailed as error:
        if logs is not None:
            raise
        # The user did not ask for the replay: compare the rest.
        figures, problems = {}, (f"nothing was replayed: {error}",)
    for problem in problems:
        say(f"problem: {problem}")
    return figures


def limits_of(path: str) -> list[Limit]:
    """Read the limits of a file; none for "" and "none". Raises UsageError naming the line."""
    if not path or path == _NO_LIMITS:
        return []
    try:
        return read_limits(Path(path))
    except ValueError as error:
        raise UsageError(str(error)) from error
