"""The start lock of a run: two launches of one run id must not both start its cloud."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import HeldError

_LOOK_S = 0.5  # far longer than `is_starting` holds a shared lock, also on a busy machine
_POLL_S = 0.02


@contextmanager
def start_lock(folder: Path, wait_s: float = 0.0) -> Generator[None, None, None]:
    """Hold `start.lock` of a run's folder; the kernel releases it if the holder dies.

    Raises HeldError if another process holds it for longer than `wait_s` (at least `_LOOK_S`: a check by `is_starting`
    must not refuse a launch), OSError.
    """
    descriptor = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + max(wait_s, _LOOK_S)
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise HeldError(
                    f"{folder.name}: another `orch` is starting this run; "
                    f"use `orch attach {folder.name}` as soon as it runs"
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def is_starting(folder: Path) -> bool:
    """Whether another process holds the lock because it creates, starts or takes down this run.

    The check takes a shared lock for some microseconds: several processes can check at once, and `start_lock` waits.
    """
    try:
        descriptor = os.open(folder / "start.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
