"""A durable request to stop a run. Code that rents VMs for the run checks it first."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

_FILE = "stop.json"
_log = logging.getLogger("orchestrator.controller")


def ask_to_stop(folder: Path, cause: str) -> None:
    """Store the request in the run's folder; the first cause is kept.

    An empty file (full disk) is a request, too. If not even that can be written, a warning is logged, and the
    caller proceeds with other means.
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
    """The cause of the stop request; "" if there is none."""
    path = folder / _FILE
    try:
        return str(json.loads(path.read_text())["cause"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "taken down" if path.exists() else ""
