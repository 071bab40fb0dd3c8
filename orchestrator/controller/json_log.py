"""The controller's log: one JSON object per line, and its rendering as text."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_FIELDS = ("slot", "generation", "vm", "cause")

_LEVELS = {logging.WARNING: "warning", logging.ERROR: "error", logging.INFO: "info", logging.DEBUG: "debug"}


class JsonFormatter(logging.Formatter):
    """`{"at" (UTC), "level", "run", "slot", "generation", "vm", "cause", "message"}`, null if unknown.

    Records of exceptions also have a "traceback". Slot and VM of a record are set with `extra=about(...)`.
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            # Hivemind renames the standard levels, hence the table.
            "level": _LEVELS.get(record.levelno, record.levelname.lower()),
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
    """The `extra=` of a log call: slot, generation, VM and cause."""
    known = generation if generation is not None and generation >= 0 else None
    return {
        "slot": slot or None,
        "generation": known,
        "vm": vm or None,
        "cause": None if cause is None else str(cause),
    }


def as_text(line: str) -> str:
    """Render a line of the log as text.

    A line that is not such an object (cut by a kill) is returned unchanged.
    """
    try:
        entry = json.loads(line)
        text = f"{entry['at']} {entry['level'].upper()} {entry['message']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return f"{text}\n{entry['traceback']}" if entry.get("traceback") else text


def log_to(logger: logging.Logger, path: Path, run: str) -> None:
    """Send the logger's records to a file only. Does nothing if the logger already writes to a file."""
    if any(isinstance(handler, logging.FileHandler) for handler in logger.handlers):
        return
    handler = logging.FileHandler(path)
    handler.setFormatter(JsonFormatter(run))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
