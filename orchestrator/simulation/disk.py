"""The disk of the controller's machine, with simulated faults: full, I/O errors, locked database."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from typing import Literal

from cloud.sim import Faults

_LIMITED = 1.0  # fault size: the reserved space helps


class SimDisk:
    """Injects `faults` during controller rounds, with the exceptions of SQLite and the operating system."""

    def __init__(self, faults: Faults, now_s: Callable[[], float], filled: Callable[[], None]) -> None:
        """`filled` is called when a write finds the disk full."""
        self._faults, self._now_s, self._filled = faults, now_s, filled
        self._freed = False  # the reserved space has been freed
        self._busy = self._failed = False

    def begin(self) -> None:
        """Begin a round of the controller."""
        self._busy, self._failed = True, False

    def end(self) -> None:
        """End the round; reads of the store outside rounds do not fail."""
        self._busy = False

    def has_failed(self) -> bool:
        """Whether it raised an error in this round."""
        return self._failed

    def use_database(self, what: Literal["read", "write"]) -> None:
        """Raise sqlite3.OperationalError if a fault strikes."""
        if not self._busy:
            return
        now_s = self._now_s()
        if what == "write" and self._is_full():
            raise self._error("database or disk is full", sqlite3.SQLITE_FULL)
        if what == "write" and self._faults.strike("store_busy", now_s) is not None:
            raise self._error("database is locked", sqlite3.SQLITE_BUSY)
        if self._faults.strike("store_io", now_s) is not None:
            raise self._error("disk I/O error", sqlite3.SQLITE_IOERR)

    def write_file(self) -> None:
        """Raise OSError if the disk is full."""
        if self._is_full():
            self._failed = True
            raise OSError(errno.ENOSPC, "No space left on device")

    def free_reserve(self) -> bool:
        """Free the reserved space; return whether there was any."""
        had, self._freed = not self._freed, True
        return had

    def _is_full(self) -> bool:
        size = self._faults.strike("disk_full", self._now_s())
        if size is None or (self._freed and size == _LIMITED):
            return False
        self._filled()
        return True

    def _error(self, text: str, code: int) -> sqlite3.OperationalError:
        self._failed = True
        error = sqlite3.OperationalError(text)
        error.sqlite_errorcode = code
        return error
