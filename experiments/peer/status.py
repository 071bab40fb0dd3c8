"""status.json: how this peer is, for whoever watches the VM's folder."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Status:
    """The peer's status.json. Every change is written to a temporary name and renamed; thread-safe.

    A folder that has become unwritable (disk full, deleted under us) must not end a training run:
    the last failure is kept in `write_error`, and `main` turns it into the exit code at the end.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._warnings: dict[str, str] = {}
        self._fields: dict[str, Any] = {
            "phase": "starting",
            "at_s": clock(),
            "maddr": None,
            "peer_id": None,
            "epoch": 0,
            "error": None,
            "hopeless": False,  # the same would happen to every other VM of the run
            "ran": None,
            "notice_at_s": None,  # unix time at which the provider will take this VM, once it has said so
            "parameters_sha": None,  # of the parameters rounded to float16, once this peer is done
            "join": None,  # metrics.records.JoinRecord's fields, once this peer trains
        }
        self.write_error: OSError | None = None

    @property
    def phase(self) -> str:
        """The last phase set."""
        return str(self._fields["phase"])

    def set(self, **fields: Any) -> None:
        """Change some of the fields and write the file."""
        unknown = set(fields) - set(self._fields)
        if unknown:
            raise KeyError(f"status.json has no field {', '.join(sorted(unknown))}")
        with self._lock:
            self._fields.update(fields, at_s=self._clock())
            self._write()

    def leaving(self, **fields: Any) -> None:
        """This peer goes; one that is done or has failed stays what it is. `fields` as in `set`."""
        ended = self.phase in ("done", "failed")
        self.set(**fields, **({} if ended else {"phase": "leaving"}))

    def warn(self, key: str, text: str) -> None:
        """Add the warning, or replace the one of the same key (for counters)."""
        with self._lock:
            self._warnings[key] = text
            self._fields["at_s"] = self._clock()
            self._write()

    def _write(self) -> None:
        document = {**self._fields, "warnings": list(self._warnings.values())}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(document) + "\n")
            temporary.replace(self._path)
        except OSError as error:
            self.write_error = error
