"""The disk of the controller's machine: without room, failing, its database locked by somebody else."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from typing import Literal

from cloud.sim import Faults

_LIMITED = 1.0  # the size of a full disk that has room for what the run has kept


class SimDisk:
    """Fails while a controller is at work, as `faults` say. What it raises is what SQLite and the system raise."""

    def __init__(self, faults: Faults, now_s: Callable[[], float], filled: Callable[[], None]) -> None:
        """`filled`: called when something finds no room."""
        self._faults, self._now_s, self._filled = faults, now_s, filled
        self._freed = False  # what the run had kept is given back
        self._busy = self._failed = False

    def begin(self) -> None:
        """A round of the controller begins."""
        self._busy, self._failed = True, False

    def end(self) -> None:
        """It is over: who looks at the store now is no part of the run."""
        self._busy = False

    def has_failed(self) -> bool:
        """Whether it raised anything in this round."""
        return self._failed

    def use_database(self, what: Literal["read", "write"]) -> None:
        """Raises sqlite3.OperationalError."""
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
        """Raises OSError where it has no room."""
        if self._is_full():
            self._failed = True
            raise OSError(errno.ENOSPC, "No space left on device")

    def free_reserve(self) -> bool:
        """Give back the room that was kept; whether there was any."""
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
