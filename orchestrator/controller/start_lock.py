"""One process at a time brings a run up: two launches of one run id must not both start its cloud."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import HeldError


@contextmanager
def start_lock(folder: Path) -> Generator[None, None, None]:
    """Hold `start.lock` of a run's folder; the kernel lets go of it when the holder dies.

    Raises HeldError when another process holds it, OSError.
    """
    descriptor = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(
                f"{folder.name}: another `orch` is starting this run; "
                f"`orch attach {folder.name}` watches it as soon as it runs"
            ) from None
        yield
    finally:
        os.close(descriptor)
