"""The controller's log: one JSON object a line, and the same as text for people."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_FIELDS = ("slot", "generation", "vm", "cause")

_LEVELS = {logging.WARNING: "warning", logging.ERROR: "error", logging.INFO: "info", logging.DEBUG: "debug"}


class JsonFormatter(logging.Formatter):
    """`{"at" (UTC), "level", "run", "slot", "generation", "vm", "cause", "message"}`, null where it has none.

    A record of an exception has its "traceback" too. What a record is about is told with `extra=about(...)`.
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "level": _LEVELS.get(
                record.levelno, record.levelname.lower()
            ),  # Hivemind gives them names of its own
            "run": self._run,
            **{name: getattr(record, name, None) for name in _FIELDS},
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def about(
    slot: str = "", generation: int | None = None, vm: str = "", cause: object = None
) -> dict[str, Any]:
    """For `extra=` of a log call: which slot and VM it is about, and why it happened."""
    known = generation if generation is not None and generation >= 0 else None
    return {
        "slot": slot or None,
        "generation": known,
        "vm": vm or None,
        "cause": None if cause is None else str(cause),
    }


def as_text(line: str) -> str:
    """A line of the log for people; one that is no such object (cut by a kill) as it stands."""
    try:
        said = json.loads(line)
        text = f"{said['at']} {said['level'].upper()} {said['message']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return f"{text}\n{said['traceback']}" if said.get("traceback") else text


def log_to(logger: logging.Logger, path: Path, run: str) -> None:
    """Write the logger's records to a file, and nowhere else; nothing when it writes to one already."""
    if any(isinstance(handler, logging.FileHandler) for handler in logger.handlers):
        return
    handler = logging.FileHandler(path)
    handler.setFormatter(JsonFormatter(run))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
