"""The virtual environment of the embedded store: Swift needs eventlet, which has no place in ours."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloud.storage.errors import EmbeddedStoreError

SWIFT_VERSION = "2.38.3"
_BEGUN = ".orch-begun"  # removed last: an installation that was interrupted still has it


def state_folder() -> Path:
    """`ORCH_HOME`, or the platform's state folder for orch."""
    if home := os.environ.get("ORCH_HOME"):
        return Path(home).absolute()
    import platformdirs

    return platformdirs.user_state_path("orch")


def swift_environment(progress: Callable[[str], None] | None = None) -> Path:
    """The folder of a virtual environment with Swift in it, made on first use (79 MB from PyPI).

    `<home>/swift-venv-<version>`, or what ORCH_SWIFT_VENV names. pip runs with the user's own
    configuration; what it says goes to a log beside the folder, which stays only when it fails.
    `progress` gets a line before and one after (default: stderr). Two at once: the second waits
    for the first. Raises EmbeddedStoreError when it cannot be made.
    """
    say = progress or _to_stderr
    given = os.environ.get("ORCH_SWIFT_VENV")
    folder = Path(given).absolute() if given else state_folder() / f"swift-venv-{SWIFT_VERSION}"
    if _has_swift(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), say):
            if not _has_swift(folder):
                if given and folder.exists() and not (folder / _BEGUN).exists():
                    raise EmbeddedStoreError(
                        f"{folder} (ORCH_SWIFT_VENV) is no virtual environment with swift in it; "
                        f"run `{folder}/bin/pip install swift=={SWIFT_VERSION}`, or unset ORCH_SWIFT_VENV"
                    )
                _install(folder, say)
    except OSError as error:
        raise EmbeddedStoreError(
            f"{folder}: cannot make the embedded store's environment ({error.strerror or error}); "
            "free the space or set ORCH_HOME to a folder that can be written"
        ) from error
    return folder


def _has_swift(folder: Path) -> bool:
    # bin/python is a link to the base Python and breaks when that is removed.
    whole = (folder / "bin/python").exists() and not (folder / _BEGUN).exists()
    return whole and any(folder.glob("lib/python*/site-packages/swift/__init__.py"))


def _install(folder: Path, say: Callable[[str], None]) -> None:
    say(f"installing OpenStack Swift {SWIFT_VERSION} into {folder} (once, 79 MB, usually under a minute)")
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / _BEGUN).touch()
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)], folder, log)
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install"]
    _run([*pip, "--progress-bar", "off", f"swift=={SWIFT_VERSION}"], folder, log)
    (folder / _BEGUN).unlink()
    log.unlink(missing_ok=True)
    say(f"Swift {SWIFT_VERSION} is installed ({time.monotonic() - began:.0f} s)")


def _run(command: list[str], folder: Path, log: Path) -> None:
    """Run it with its output in `log`. Raises EmbeddedStoreError with the last line of that."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("ab") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
    if done.returncode:
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise EmbeddedStoreError(
            f"the embedded store cannot be installed into {folder}: `{' '.join(command[1:])}` ended with "
            f"{done.returncode} ({said[-1][:300] if said else 'no output'}; all of it in {log}); mend pip's "
            "access to an index, or name an S3 store of your own as the data's endpoint"
        )


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another orch that installs Swift")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress belongs on stderr
