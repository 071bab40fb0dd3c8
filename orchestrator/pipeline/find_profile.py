"""Find and read the profile that a plan is made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analysis.pipeline.profile_file import ProfileFileError, from_json
from analysis.pipeline.profile_records import Profile
from orchestrator.errors import UsageError

LATEST = "latest"
FILE = "profile.json"
HOST_FILE = "host.csv"  # beside it


def profiles_folder(home: Path) -> Path:
    """The folder that `orch pipeline profile` writes to: one folder for each profile."""
    return home / "profiles"


def find_profile(
    name: str, home: Path, experiment: str, pipeline: str, say: Callable[[str], None]
) -> tuple[Profile, Path]:
    """Return a profile and its file: FILE, the file in a folder, or the newest one of the experiment or of `pipeline`.

    Raises UsageError.
    """
    if name != LATEST:
        path = Path(name)
        path = path / FILE if path.is_dir() else path
        return read_profile(path), path
    found = newest_profile(home, pipeline or experiment, say, of_pipeline=bool(pipeline))
    if found is None:
        wanted = pipeline or experiment
        raise UsageError(
            f"there is no profile of {wanted} in {profiles_folder(home)}; measure one with `orch pipeline profile {wanted}`"
            + ("" if pipeline else ", or name another pipeline's with --pipeline or --profile")
        )
    return found


def newest_profile(
    home: Path, wanted: str, say: Callable[[str], None], *, of_pipeline: bool
) -> tuple[Profile, Path] | None:
    """Return the newest profile of the target `wanted`, or with `of_pipeline` also of the pipeline of that name, if any.

    `say` gets a sentence on each file that is no profile.
    """
    found: list[tuple[str, str, Profile, Path]] = []
    for path in sorted(profiles_folder(home).glob(f"*/{FILE}")):
        try:
            profile = read_profile(path)
        except UsageError as error:
            say(f"left out: {error}")
            continue
        if wanted == profile.target or (of_pipeline and wanted == profile.pipeline):
            found.append((profile.measured_at, path.parent.name, profile, path))
    if not found:
        return None
    _, _, profile, path = max(found, key=lambda one: one[:2])
    return profile, path


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises UsageError with the reason in one sentence."""
    hint = "give a profile.json that `orch pipeline profile` wrote, or its folder"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot read the profile ({error.strerror}); {hint}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not text in UTF-8; {hint}") from error
    try:
        profile = from_json(text)
    except ProfileFileError as error:
        raise UsageError(f"{path}: not a profile ({error}); {hint}") from error
    if not profile.measurements:
        raise UsageError(f"{path}: the profile has no strategy; {hint}")
    return profile
