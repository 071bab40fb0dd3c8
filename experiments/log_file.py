"""A log file that several forked processes write to."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path


class LogFile(logging.Handler):
    """Appends lines to a file, and has no lock that a fork could take along.

    Hivemind forks its processes while other threads log. The streams of logging.FileHandler have a lock of their own, which
    is held while a line is written and, unlike logging's, stays held in a process that was forked meanwhile: its first line
    would stop it for ever.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def emit(self, record: logging.LogRecord) -> None:
        """Write it as one line, as a rule in one call: lines of several processes do not mix."""
        try:
            left = memoryview(f"{self.format(record)}\n".encode(errors="backslashreplace"))
            while left:
                left = left[os.write(self._file, left) :]
        except Exception:  # noqa: BLE001 - logging's way: what cannot be logged is told on stderr and ends nothing
            self.handleError(record)

    def close(self) -> None:
        """Close it in this process."""
        with contextlib.suppress(OSError):
            os.close(self._file)
        super().close()
