"""A log file for several forked processes."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path


class LogFile(logging.Handler):
    """Append log lines to a file without a lock that a forked process would inherit.

    Hivemind forks processes while other threads log. The streams of logging.FileHandler have a lock of their own. Unlike
    logging's locks, it is not reset by a fork: if it is held at that moment, the child blocks forever on its first line.
    """

    def __init__(self, path: Path) -> None:
        """Open the file for appending. Raises OSError."""
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, normally in one call, so that lines of several processes do not mix."""
        try:
            left = memoryview(f"{self.format(record)}\n".encode(errors="backslashreplace"))
            while left:
                left = left[os.write(self._file, left) :]
        except Exception:  # noqa: BLE001 - as in logging: report on stderr and continue
            self.handleError(record)

    def close(self) -> None:
        """Close the file in this process."""
        with contextlib.suppress(OSError):
            os.close(self._file)
        super().close()
