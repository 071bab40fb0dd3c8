"""The virtual environment of the embedded store. Swift needs eventlet, which must not be installed in orch's own."""

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
_BEGUN = ".orch-begun"  # removed last, so an interrupted installation still has it


def state_folder() -> Path:
    """`ORCH_HOME`, or the platform's state folder for orch."""
    if home := os.environ.get("ORCH_HOME"):
        return Path(home).absolute()
    import platformdirs

    return platformdirs.user_state_path("orch")


def swift_environment(progress: Callable[[str], None] | None = None) -> Path:
    """Return a virtual environment with Swift, created on first use (79 MB from PyPI).

    It is `<home>/swift-venv-<version>`, or the folder in ORCH_SWIFT_VENV. pip uses the user's own configuration; its
    output goes to a log next to the folder, which is kept only on failure. `progress` receives one line before and one
    after the installation (default: stderr). A concurrent call waits for the first. Raises EmbeddedStoreError if the
    environment cannot be created.
    """
    report = progress or _to_stderr
    given = os.environ.get("ORCH_SWIFT_VENV")
    folder = Path(given).absolute() if given else state_folder() / f"swift-venv-{SWIFT_VERSION}"
    if _has_swift(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), report):
            if not _has_swift(folder):
                if given and folder.exists() and not (folder / _BEGUN).exists():
                    raise EmbeddedStoreError(
                        f"{folder} (ORCH_SWIFT_VENV) is not a virtual environment with swift installed; "
                        f"run `{folder}/bin/pip install swift=={SWIFT_VERSION}`, or unset ORCH_SWIFT_VENV"
                    )
                _install(folder, report)
    except OSError as error:
        raise EmbeddedStoreError(
            f"{folder}: cannot create the embedded store's environment ({error.strerror or error}); "
            "free some space or set ORCH_HOME to a writable folder"
        ) from error
    return folder


def _has_swift(folder: Path) -> bool:
    # bin/python is a link to the base Python and breaks if that is removed.
    whole = (folder / "bin/python").exists() and not (folder / _BEGUN).exists()
    return whole and any(folder.glob("lib/python*/site-packages/swift/__init__.py"))


def _install(folder: Path, report: Callable[[str], None]) -> None:
    report(f"installing OpenStack Swift {SWIFT_VERSION} into {folder} (once, 79 MB, usually under a minute)")
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
    report(f"Swift {SWIFT_VERSION} is installed ({time.monotonic() - began:.0f} s)")


def _run(command: list[str], folder: Path, log: Path) -> None:
    """Run a command with its output in `log`. Raises EmbeddedStoreError with the last line of the output."""
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
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise EmbeddedStoreError(
            f"the embedded store cannot be installed into {folder}: `{' '.join(command[1:])}` ended with "
            f"{done.returncode} ({lines[-1][:300] if lines else 'no output'}; full output in {log}); fix pip's "
            "access to a package index, or use your own S3 store as the data's endpoint"
        )


@contextmanager
def _locked(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another orch process that is installing Swift")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress belongs on stderr
