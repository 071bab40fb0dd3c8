"""The durable wish that a run ends. Whatever would rent something for the run looks for it first."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

_FILE = "stop.json"
_log = logging.getLogger("orchestrator.controller")


def ask_to_stop(folder: Path, cause: str) -> None:
    """Leave the wish in the run's folder; the first cause stays. On a full disk the file is empty, and asks as well.

    Where not even that can be written, it is logged: whoever asks goes on by other means.
    """
    path = folder / _FILE
    try:
        with path.open("x") as file:
            file.write(json.dumps({"cause": cause, "at_s": time.time()}))
    except FileExistsError:
        return
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error)


def asked_to_stop(folder: Path) -> str:
    """Why the run is to end; "" when nobody asked."""
    path = folder / _FILE
    try:
        return str(json.loads(path.read_text())["cause"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "taken down" if path.exists() else ""
