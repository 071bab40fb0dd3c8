"""Write and read the two files of a two-stage profile."""

from __future__ import annotations

from pathlib import Path

from analysis.pipeline.offload.offload_profile import OffloadProfile
from analysis.pipeline.offload.offload_profile_file import OffloadProfileFileError, from_texts, to_texts
from cloud.durable_file import write_durably
from orchestrator.errors import UsageError

HEAD_FILE = "offload.json"
SAMPLES_FILE = "samples.csv"  # in the same folder
# Names in a tar may hold bytes that are not UTF-8.
_ENCODING, _ERRORS = "utf-8", "surrogateescape"


def write_offload_profile(folder: Path, profile: OffloadProfile) -> Path:
    """Write both files and return the head's path; the head is written last. Raises OSError."""
    head, samples = to_texts(profile)
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / SAMPLES_FILE, samples.encode(_ENCODING, _ERRORS), 0o644)
    write_durably(folder / HEAD_FILE, head.encode(), 0o644)
    return folder / HEAD_FILE


def head_at(name: str) -> Path | None:
    """The head that a folder or a file names; None: it names something else, such as a table of SOPHON's authors."""
    path = Path(name)
    path = path / HEAD_FILE if path.is_dir() else path
    return path if path.suffix == ".json" else None


def read_offload_profile(head: Path) -> OffloadProfile:
    """Read a profile. Raises UsageError with the reason in one sentence."""
    texts: list[str] = []
    hint = "give the folder that `orch pipeline profile --offload` wrote"
    path = head
    try:
        for path in (head, head.parent / SAMPLES_FILE):
            texts.append(path.read_bytes().decode(_ENCODING, _ERRORS))
    except OSError as error:
        raise UsageError(f"{path}: cannot read the profile ({error.strerror}); {hint}") from error
    try:
        return from_texts(*texts)
    except OffloadProfileFileError as error:
        raise UsageError(f"{head.parent}: not a two-stage profile ({error}); {hint}") from error
