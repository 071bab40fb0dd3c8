"""The home folder, the run folders in it, and how a run is named and found."""

from __future__ import annotations

import getpass
import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from random import Random

import platformdirs

from cloud.targets import TARGETS
from orchestrator.errors import UsageError

_OWNER = re.compile(r"[a-z0-9_-]{1,63}")


def home_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`ORCH_HOME`, or else the platform's state folder for `orch`. Absolute; not created here."""
    chosen = (os.environ if environ is None else environ).get("ORCH_HOME", "")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_state_path("orch").absolute()


def make_home(home: Path) -> None:
    """Create the home folder, accessible to this user only; an existing one is left unchanged.

    Raises OSError.
    """
    try:
        home.mkdir(mode=0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)


def runs_folder(home: Path) -> Path:
    """The folder that contains the run folders."""
    return home / "runs"


def run_folder(home: Path, run_id: str) -> Path:
    """The folder of one run, whether or not it exists."""
    return runs_folder(home) / run_id


def spot_folder(home: Path) -> Path:
    """The folder that contains the imported spot histories, whether or not it exists."""
    return home / "spot"


def new_run_id(name: str, at: datetime, random: Random) -> str:
    """`<name>-YYYYMMDD-<4 hex digits>`; the caller passes the clock and the randomness."""
    return f"{name}-{at:%Y%m%d}-{random.getrandbits(16):04x}"


def list_runs(home: Path) -> list[str]:
    """Run ids, newest first (by the time at which the experiment file was copied in)."""
    try:
        folders = [f for f in runs_folder(home).iterdir() if (f / "experiment.yaml").is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"{runs_folder(home)}: cannot list the runs: {error.strerror}; choose another place with ORCH_HOME"
        ) from error
    return [
        f.name for f in sorted(folders, key=lambda f: (-(f / "experiment.yaml").stat().st_mtime_ns, f.name))
    ]


def list_remains(home: Path) -> list[str]:
    """Names of all folders below `runs` that may belong to a live run, even with files missing."""
    traces = ("run.db", *(target.trace for target in TARGETS.values() if target.trace))
    try:
        return sorted(f.name for f in runs_folder(home).iterdir() if any((f / t).exists() for t in traces))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{runs_folder(home)}: cannot list the runs: {error.strerror}") from error


def resolve_run(home: Path, text: str) -> str:
    """Resolve `text` to a run id: the id itself, a prefix of exactly one run, or `latest`.

    Raises UsageError, listing the candidates.
    """
    runs = list_runs(home)
    if text == "latest":
        if not runs:
            raise UsageError(f"{runs_folder(home)}: no run yet; start one with `orch launch`")
        return runs[0]
    if text in runs:
        return text
    shown = repr(text if len(text) <= 80 else f"{text[:80]}...")
    matching = [run for run in runs if text and run.startswith(text)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise UsageError(f"{shown}: no such run in {runs_folder(home)}; `orch ls` lists the runs")
    raise UsageError(
        f"{shown}: {len(matching)} runs start with this ({', '.join(matching[:5])}); type more of the id"
    )


def owner(home: Path, environ: Mapping[str, str] | None = None) -> str:
    """The owner of all VMs rented from this home (label orch-owner): `<user>-<8 hex digits>`.

    It is created once and stored in `<home>/owner`; `ORCH_OWNER` overrides it. Only renting creates one: code
    that looks for VMs calls `stored_owner`. Raises UsageError.
    """
    kept = stored_owner(home, environ)
    if kept:
        _record_owner(home, kept)
        return kept
    user = re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:40] or "user"
    make_home(home)
    try:
        fd = os.open(home / "owner", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another `orch` created it first
        return owner(home, environ)
    name = f"{user}-{secrets.token_hex(4)}"
    with os.fdopen(fd, "w") as file:
        file.write(f"{name}\n")
    _record_owner(home, name)
    return name


def owners(home: Path) -> set[str]:
    """Every owner name under which VMs were ever rented from this home. Raises UsageError."""
    path = home / "owners"
    try:
        names = path.read_text().split()
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot read the owner names ({error}); write them again, one name a line"
        ) from error
    own = stored_owner(home, {})
    return {checked_owner(name, f"{path}:") for name in names} | ({own} if own else set())


def _record_owner(home: Path, name: str) -> None:
    """Record an owner name durably before renting under it: `orch reap` queries the clouds for all of them."""
    if name not in owners(home):
        make_home(home)
        with (home / "owners").open("a") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())


def stored_owner(home: Path, environ: Mapping[str, str] | None = None) -> str:
    """`ORCH_OWNER`, or else the name in `<home>/owner`; "" if nothing was ever rented. Raises UsageError."""
    given = (os.environ if environ is None else environ).get("ORCH_OWNER", "")
    if given:
        return checked_owner(given, "ORCH_OWNER")
    path = home / "owner"
    try:
        kept = path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if _OWNER.fullmatch(kept):
        return kept
    raise UsageError(f"{path}: does not contain a valid owner name; write it again, or set ORCH_OWNER")


def checked_owner(name: str, where: str) -> str:
    """Return the name if it is a valid label on every cloud.

    Raises UsageError that starts with `where`, the source of the name.
    """
    if not _OWNER.fullmatch(name):
        raise UsageError(
            f"{where} {name[:80]!r}: must consist of a-z, 0-9, '_' and '-', with at most 63 characters"
        )
    return name
