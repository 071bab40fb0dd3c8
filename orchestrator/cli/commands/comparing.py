"""From the names of runs and studies to what is compared: their numbers, the limits, the study's logs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.compare.accuracy_runs import compare_held_out
from analysis.compare.expectations import Listed, judge_expected
from analysis.compare.option_figures import OptionRun
from analysis.compare.option_runs import option_run
from analysis.compare.options import Gains, gains
from analysis.compare.published import ComparedRun
from analysis.compare.published_runs import compared_run, replayed_figures
from analysis.importers.base import ImportFailed
from analysis.replay import read_folder
from analysis.report.study.comparison import Compared
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
    """What a study says of a run."""

    label: str = ""
    attempts: int = 1
    judged: bool | None = None
    against: str = ""


@dataclass
class Wanted:
    """What is to be compared, each run once."""

    study: str | None = None  # the id, where it is one study
    runs: dict[Path, _Entry] = field(default_factory=dict)  # by folder
    missing: dict[str, str] = field(default_factory=dict)  # experiment -> why it has no run
    replay: str = "auto"
    limits: str = ""  # a file; "": not judged
    accuracy: Mapping[str, str] | None = None  # {"of", "against"}: whose held-out accuracy is compared
    baseline: str = ""  # the label of the entry that the others are held against
    columns: tuple[str, ...] = ()  # of what they gain
    listed: list[tuple[Listed, Path | None]] = field(default_factory=list)  # each job's row, its run's folder
    expect: tuple[Expectation, ...] = ()  # of the rows

    @property
    def folders(self) -> list[Path]:
        """The runs' folders."""
        return list(self.runs)


def wanted_runs(home: Path, targets: Sequence[str]) -> Wanted:
    """What the words on the command line mean: runs and studies. Raises UsageError."""
    found = Wanted(limits=str(STUDIES / "paper-abc-limits.csv"))
    runs = set(list_runs(home))
    for text in targets:
        folder = None if text in runs or text == "latest" else find_study_folder(home, text)
        if folder is None:
            try:
                found.runs.setdefault(run_folder(home, resolve_run(home, text)), _Entry())
            except UsageError as error:
                if text in studies():
                    said = f"{text}: ships with orch and was not run here yet; `orch study run {text}` does"
                    raise UsageError(said) from error
                raise UsageError(f"{error}; nor is there a study of that name (`orch study ls`)") from error
            continue
        definition = read_study(folder)
        whole = wanted_study(home, definition, read_state(folder, definition))
        if len(targets) == 1:
            return whole
        found.runs |= whole.runs  # which knows more of a run that was named by itself before
        found.missing |= whole.missing
    return found


def wanted_study(home: Path, study: StudyDefinition, state: StudyState) -> Wanted:
    """A study's runs that have numbers, finished or not; and why the others have none."""
    limits = study.compare["limits"]
    own = str(studies_folder(home) / study.study_id / limits) if limits else ""
    accuracy = study.compare.get("accuracy")  # a study of an older orch has none
    found = Wanted(study.study_id, replay=study.compare["replay"], limits=own, accuracy=accuracy)
    found.baseline = study.compare.get("baseline", "")
    found.columns = tuple(study.compare.get("columns", ()))
    found.expect = tuple(Expectation.model_validate(one) for one in study.compare.get("expect", ()))
    for one in state.jobs:
        job, folder, missing = one.job, None, ""
        if one.result is None:
            found.missing[job.key] = missing = _why(one, state)
        else:
            folder = run_folder(home, one.result.run_id)
            found.runs[folder] = _Entry(job.label, len(one.counted), job.judged, job.against)
        model = str(study.documents[job.key].get("model"))
        found.listed.append((Listed(job.experiment, job.label, model, job.against, missing), folder))
    return found


def compare_wanted(wanted: Wanted, logs: Path | None, limits: str, include_contended: bool) -> Compared:
    """Read everything. `limits`: a file instead of the wanted one's, or "none". Raises UsageError, ImportFailed."""
    replayed = _replayed(wanted, logs)
    rows: list[ComparedRun] = []
    options: list[OptionRun] = []
    readable: list[RunNumbers] = []
    for folder, entry in wanted.runs.items():
        try:
            read = read_folder(folder)
        except StoreError as error:
            wanted.missing[folder.name] = f"cannot be read: {error}"
            continue
        readable.append(read.run)
        row = compared_run(read, replayed, entry.label, entry.attempts, entry.judged)
        if row.emulated["sps"] is None:
            wanted.missing[folder.name] = "no measured epoch"
        else:
            rows.append(row)
            if wanted.baseline:
                options.append(option_run(read.run, row, entry.label, include_contended, entry.against))
    alike = None
    if wanted.accuracy:
        alike = compare_held_out(readable, **wanted.accuracy, include_contended=include_contended)
    gained = _gained(wanted, options) if wanted.baseline else None
    asked = limits_of(limits or wanted.limits)
    return Compared(rows, asked, wanted.missing, include_contended, alike, gained)


def expected_of(study: str) -> tuple[Expectation, ...]:
    """What a study's file or name expects of rows; nothing for "none". Raises SpecError."""
    return () if study == _NO_LIMITS else load_study(study).spec.compare.expect


def _gained(wanted: Wanted, options: Sequence[OptionRun]) -> Gains:
    """The rows, and the verdicts on them."""
    listed = [
        replace(one, missing=wanted.missing.get(folder.name, "")) if folder else one
        for one, folder in wanted.listed
    ]
    verdicts = judge_expected(wanted.expect, listed, options, wanted.baseline)
    return Gains(wanted.baseline, wanted.columns, gains(options, wanted.baseline), verdicts)


def _why(one: JobState, state: StudyState) -> str:
    if one.open is not None:
        return f"its run {one.open.run_id} has not ended"
    if not one.settled(state.retries) or not one.counted:
        return "not run yet"
    end = one.counted[-1].end
    assert end is not None
    return f"{end.status.replace('_', ' ')}{f': {end.error}' if end.error else ''}"


def _replayed(wanted: Wanted, logs: Path | None) -> dict[str, Any]:
    """The study's own logs: those that are named, else those of ORCH_SHARED where there are some."""
    shared = os.environ.get("ORCH_SHARED", "")
    found = logs or Path(shared) / "paper-traces"
    if logs is None and (not shared or wanted.replay == "never" or not found.is_dir()):
        return {}
    try:
        figures, problems = replayed_figures(found)
    except ImportFailed as error:
        if logs is not None:
            raise
        figures, problems = (
            {},
            (f"nothing is replayed: {error}",),
        )  # nobody asked for it: the rest is compared
    for problem in problems:
        say(f"problem: {problem}")
    return figures


def limits_of(path: str) -> list[Limit]:
    """The limits of a file; none for "" and "none". Raises UsageError with its line."""
    if not path or path == _NO_LIMITS:
        return []
    try:
        return read_limits(Path(path))
    except ValueError as error:
        raise UsageError(str(error)) from error
