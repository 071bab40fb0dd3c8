"""The folder of a study, `<home>/studies/<study id>/`, with everything that was decided when it began.

`study.json`: the jobs with their approved experiments and plans; written atomically and last, so a folder without it
is not a study. `study.yaml`: a copy of the study file, which is not read again. `limits.csv`: the limits it is judged
by, if any. `journal.jsonl`: the journal. `lock`: held by the process that runs the study.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import HeldError, UsageError
from orchestrator.home import runs_folder
from orchestrator.study.core import Job, StudyState, replay_study
from orchestrator.study.journal import read_journal

_SCHEMA = 1


@dataclass(frozen=True)
class StudyDefinition:
    """The immutable definition of a study. `documents` and `plans` are keyed by job."""

    study_id: str
    name: str
    on: str  # "local" or "sky"
    retries: int
    jobs: tuple[Job, ...]
    documents: Mapping[str, Mapping[str, Any]]  # resolved experiment files
    plans: Mapping[str, Mapping[str, Any]]  # as approved
    # {"replay", "limits": a file in the folder or "", "held_out": {"figure", "of", "against"} or None, "baseline", "columns",
    # "expect": [as in the file]}
    compare: Mapping[str, Any]
    created_s: float
    part: bool = False  # only some of the runs of its file were selected


def studies_folder(home: Path) -> Path:
    """The folder of all studies."""
    return home / "studies"


def create_study(home: Path, study: StudyDefinition, text: str, limits: str = "") -> Path:
    """Create the study's folder. `text` is the content of the study file, `limits` that of the limits file.

    Raises UsageError if the folder exists or cannot be written.
    """
    folder = studies_folder(home) / study.study_id
    suffix = "-".join(study.study_id.rsplit("-", 2)[-2:])
    if any(runs_folder(home).glob(f"*-{suffix}-[0-9]*")):
        raise UsageError(f"{study.study_id}: runs of another study have the same date and digits; try again")
    try:
        folder.mkdir(parents=True, mode=0o700)
        (folder / "study.yaml").write_text(text, encoding="utf-8")
        if limits:
            (folder / "limits.csv").write_text(limits, encoding="utf-8")
        new = folder / "study.json.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump({"schema_version": _SCHEMA, **asdict(study)}, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        new.rename(folder / "study.json")
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot write the study's folder ({error.strerror}); set ORCH_HOME to another folder"
        ) from error
    return folder


def read_study(folder: Path) -> StudyDefinition:
    """Read the definition written by `create_study`. Raises UsageError."""
    path = folder / "study.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema_version") != _SCHEMA:
            raise UsageError(f"{path}: written by another version of orch; use that version to read it")
        return StudyDefinition(**{**raw, "jobs": tuple(Job(**job) for job in raw["jobs"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: not a valid study ({error}); restore the file, or remove the folder"
        ) from error


def read_state(folder: Path, study: StudyDefinition) -> StudyState:
    """Compute the state of the study from its journal. Raises UsageError."""
    try:
        return replay_study(study.jobs, study.retries, read_journal(folder))
    except ValueError as error:
        raise UsageError(
            f"{folder}: the journal does not belong to this study: {error}; remove the folder and run the study again"
        ) from error


def list_studies(home: Path, name: str = "") -> list[Path]:
    """Folders of the studies, newest first, optionally only those of the given name."""
    found = [
        path.parent
        for path in studies_folder(home).glob("*/study.json")
        if not name or path.parent.name.rsplit("-", 2)[0] == name
    ]
    return sorted(found, key=lambda folder: (-(folder / "study.json").stat().st_mtime_ns, folder.name))


def find_study_folder(home: Path, text: str) -> Path | None:
    """Find a study by its id, its name (see `newest_named`) or a unique prefix of its id.

    Raises UsageError if a study of that name cannot be read.
    """
    fitting = [folder for folder in list_studies(home) if text and folder.name.startswith(text)]
    exact = next((folder for folder in fitting if folder.name == text), None) or newest_named(home, text)
    return exact or (fitting[0] if len(fitting) == 1 else None)


def newest_named(home: Path, name: str) -> Path | None:
    """Return the newest study of that name with all runs of its file, else the newest. Raises UsageError."""
    folders = list_studies(home, name) if name else []
    whole = (folder for folder in folders if not read_study(folder).part)
    return next(whole, folders[0] if folders else None)


@contextmanager
def hold_study(folder: Path) -> Generator[None, None, None]:
    """Lock the study for this process, until it exits at the latest. Raises HeldError, OSError."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(
                f"{folder.name}: another `orch` process is running this study; see its results with `orch compare {folder.name}`"
            ) from None
        yield
    finally:
        os.close(descriptor)
