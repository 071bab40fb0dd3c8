"""Where runs live: the home folder, the run folders in it, and how a run is named and found."""

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
    """`ORCH_HOME`, else the platform's state folder for `orch`. Absolute; not made here."""
    chosen = (os.environ if environ is None else environ).get("ORCH_HOME", "")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_state_path("orch").absolute()


def make_home(home: Path) -> None:
    """Make the home folder, for this user alone; one that is there stays as it is. Raises OSError."""
    try:
        home.mkdir(mode=0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)


def runs_folder(home: Path) -> Path:
    """Where the run folders lie."""
    return home / "runs"


def run_folder(home: Path, run_id: str) -> Path:
    """The folder of one run, there or not."""
    return runs_folder(home) / run_id


def new_run_id(name: str, at: datetime, random: Random) -> str:
    """`<name>-YYYYMMDD-<4 hex digits>`; the caller passes the clock and the randomness."""
    return f"{name}-{at:%Y%m%d}-{random.getrandbits(16):04x}"


def list_runs(home: Path) -> list[str]:
    """Run ids, the newest first (by when the experiment's file was copied in)."""
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
    """All folders below `runs` in which something of a run may live, whatever else is missing from them."""
    traces = ("run.db", *(target.trace for target in TARGETS.values() if target.trace))
    try:
        return sorted(f.name for f in runs_folder(home).iterdir() if any((f / t).exists() for t in traces))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{runs_folder(home)}: cannot list the runs: {error.strerror}") from error


def resolve_run(home: Path, text: str) -> str:
    """The run id that `text` means: the id itself, a prefix only one run has, or `latest`.

    Raises UsageError with what there is to choose from.
    """
    runs = list_runs(home)
    if text == "latest":
        if not runs:
            raise UsageError(f"{runs_folder(home)}: no run yet; start one with `orch launch`")
        return runs[0]
    if text in runs:
        return text
    shown = repr(text if len(text) <= 80 else f"{text[:80]}...")
    fitting = [run for run in runs if text and run.startswith(text)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise UsageError(f"{shown}: no such run in {runs_folder(home)}; `orch ls` lists the runs")
    raise UsageError(
        f"{shown}: {len(fitting)} runs begin so ({', '.join(fitting[:5])}); write more of the id"
    )


def owner(home: Path, environ: Mapping[str, str] | None = None) -> str:
    """Who rents: the label orch-owner of all VMs, `<user>-<8 hex digits>`, made once and kept in `<home>/owner`.

    `ORCH_OWNER` overrides it. Only who rents makes one: whoever looks for VMs asks `kept_owner`. Raises UsageError.
    """
    kept = kept_owner(home, environ)
    if kept:
        _note_owner(home, kept)
        return kept
    user = re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:40] or "user"
    make_home(home)
    try:
        fd = os.open(home / "owner", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another `orch` was faster
        return owner(home, environ)
    made = f"{user}-{secrets.token_hex(4)}"
    with os.fdopen(fd, "w") as file:
        file.write(f"{made}\n")
    _note_owner(home, made)
    return made


def owners(home: Path) -> set[str]:
    """All names under which VMs were ever rented from this home. Raises UsageError."""
    path = home / "owners"
    try:
        names = path.read_text().split()
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); write the names of its owners again") from error
    own = kept_owner(home, {})
    return {checked_owner(name, f"{path}:") for name in names} | ({own} if own else set())


def _note_owner(home: Path, name: str) -> None:
    """On the disk before anything is rented under it: `orch reap` asks the clouds for all of them."""
    if name not in owners(home):
        make_home(home)
        with (home / "owners").open("a") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())


def kept_owner(home: Path, environ: Mapping[str, str] | None = None) -> str:
    """`ORCH_OWNER`, else what `<home>/owner` has; "" where nothing was ever rented. Raises UsageError."""
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
    raise UsageError(f"{path}: does not hold an owner's name; write it again, or set ORCH_OWNER")


def checked_owner(name: str, where: str) -> str:
    """The name, fit to be a label of every cloud. Raises UsageError that begins with `where` it was given."""
    if not _OWNER.fullmatch(name):
        raise UsageError(f"{where} {name[:80]!r}: made of a-z, 0-9, '_' and '-', at most 63 of them")
    return name
