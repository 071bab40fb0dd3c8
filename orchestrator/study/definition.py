"""A study in its folder, `<home>/studies/<study id>/`: what was decided when it began, never read again from its file.

`study.json`: the jobs with their experiments and plans as approved; written last and whole, so that a folder without
it is no study. `study.yaml`: the file as given; `limits.csv`: what it is judged by, where it is. `journal.jsonl`: what
happened. `lock`: held by who runs it.
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
    """What a study is, from its first moment on. `documents` and `plans` by job."""

    study_id: str
    name: str
    on: str  # "local" or "sky"
    retries: int
    jobs: tuple[Job, ...]
    documents: Mapping[str, Mapping[str, Any]]  # resolved experiments
    plans: Mapping[str, Mapping[str, Any]]  # as approved
    # {"replay", "limits": a file in the folder or "", "accuracy": {"of", "against"} or None, "baseline", "columns",
    # "expect": [as in the file]}
    compare: Mapping[str, Any]
    created_s: float
    part: bool = False  # of its file's runs only some were chosen


def studies_folder(home: Path) -> Path:
    """Where the studies lie."""
    return home / "studies"


def create_study(home: Path, study: StudyDefinition, text: str, limits: str = "") -> Path:
    """Make the study's folder; `text` is its file, `limits` that of its limits.

    Raises UsageError when it exists or cannot be written.
    """
    folder = studies_folder(home) / study.study_id
    suffix = "-".join(study.study_id.rsplit("-", 2)[-2:])
    if any(runs_folder(home).glob(f"*-{suffix}-[0-9]*")):
        raise UsageError(f"{study.study_id}: runs of another study have these digits; try again")
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
            f"{folder}: cannot write the study's folder ({error.strerror}); choose another place with ORCH_HOME"
        ) from error
    return folder


def read_study(folder: Path) -> StudyDefinition:
    """What `create_study` wrote. Raises UsageError."""
    path = folder / "study.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema_version") != _SCHEMA:
            raise UsageError(f"{path}: of a newer orch than this; read it with that")
        return StudyDefinition(**{**raw, "jobs": tuple(Job(**job) for job in raw["jobs"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a study ({error}); remove the folder, or restore the file") from error


def read_state(folder: Path, study: StudyDefinition) -> StudyState:
    """Where the study is, by its journal. Raises UsageError."""
    try:
        return replay_study(study.jobs, study.retries, read_journal(folder))
    except ValueError as error:
        raise UsageError(
            f"{folder}: its journal is not one of this study: {error}; remove the folder, and run it again"
        ) from error


def list_studies(home: Path, name: str = "") -> list[Path]:
    """Folders of the studies, the newest first; `name`: only those of that name."""
    found = [
        path.parent
        for path in studies_folder(home).glob("*/study.json")
        if not name or path.parent.name.rsplit("-", 2)[0] == name
    ]
    return sorted(found, key=lambda folder: (-(folder / "study.json").stat().st_mtime_ns, folder.name))


def find_study_folder(home: Path, text: str) -> Path | None:
    """The study that `text` means: its id, its name (see `newest_named`), or a beginning that only one id has.

    Raises UsageError for a name where a study's file cannot be read.
    """
    fitting = [folder for folder in list_studies(home) if text and folder.name.startswith(text)]
    exact = next((folder for folder in fitting if folder.name == text), None) or newest_named(home, text)
    return exact or (fitting[0] if len(fitting) == 1 else None)


def newest_named(home: Path, name: str) -> Path | None:
    """The newest study of that name with all runs of its file; where each has only some, the newest. Raises UsageError."""
    folders = list_studies(home, name) if name else []
    whole = (folder for folder in folders if not read_study(folder).part)
    return next(whole, folders[0] if folders else None)


@contextmanager
def hold_study(folder: Path) -> Generator[None, None, None]:
    """Be the only process that runs this study; the kernel lets go when it dies. Raises HeldError, OSError."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(
                f"{folder.name}: another `orch` is running this study; `orch compare {folder.name}` shows how far it is"
            ) from None
        yield
    finally:
        os.close(descriptor)
