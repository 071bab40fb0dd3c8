"""Detects lost parts of averaging rounds in Hivemind's log messages, in whichever process they are written."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

from experiments.log_file import LogFile

# Hivemind logs these in the averager's process; no result or exception reports them.
_LOSSES = (
    (re.compile(r"Averaging: received ([\d.]+)% results"), "received {0} % of results"),
    (re.compile(r"Reducer: received ([\d.]+)% of input tensors"), "received {0} % of inputs"),
    (re.compile(r"All-reduce group .* did not finish"), "all-reduce did not finish"),
)


def loss_reason(message: str) -> str | None:
    """Return the reason why part of a round was lost, if this Hivemind log message reports one."""
    for pattern, text in _LOSSES:
        if found := pattern.search(message):
            return text.format(*found.groups())
    return None


class LossWatch(logging.Handler):
    """Log handler that sends loss reasons from all forked processes to the parent through a pipe.

    Averaging runs in a process forked after this handler was installed. A record emitted there reaches the parent as
    one line, shorter than PIPE_BUF, so lines do not mix. If the pipe is full because it is not read, lines are dropped
    instead of blocking the averager.
    """

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._rest = b""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the reason if the record reports a loss."""
        reason = loss_reason(record.getMessage())
        if reason is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._write_end, reason.encode()[:200] + b"\n")

    def take(self) -> list[str]:
        """Return the reasons since the last call, in order, without duplicates."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read_end, 65536):
                data += chunk
        *lines, self._rest = data.split(b"\n")
        return list(dict.fromkeys(line.decode(errors="replace") for line in lines))

    def close(self) -> None:
        """Close both ends in this process."""
        for end in (self._read_end, self._write_end):
            with contextlib.suppress(OSError):
                os.close(end)
        super().close()


def set_up_logging(path: Path) -> LossWatch:
    """Write this process's log, including Hivemind's, to `path`. Returns the handler that watches for losses.

    Must run before Hivemind forks processes, which inherit the handlers. The file is opened for appending, so lines of
    several processes do not overwrite each other.
    """
    from hivemind.utils.logging import use_hivemind_log_handler

    use_hivemind_log_handler("nowhere")
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    to_file = LogFile(path)
    to_file.setFormatter(
        logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(process)d %(name)s: %(message)s")
    )
    watch = LossWatch()
    root.addHandler(to_file)
    root.setLevel(logging.INFO)
    logging.getLogger("hivemind").addHandler(watch)
    logging.captureWarnings(True)
    return watch
