"""status.json: the peer's state, read by the controller from the VM's folder."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from experiments.peer.training.bad_samples import LeftOut


class Status:
    """The peer's status.json. Every change is written to a temporary file and renamed; thread-safe.

    A folder that becomes unwritable (disk full, deleted) must not end a training run: the last error is kept in
    `write_error`, and `Peer.run` turns it into the exit code at the end.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._warnings: dict[str, str] = {}
        self._recorded: set[str] = set()  # keys
        self._fields: dict[str, Any] = {
            "phase": "starting",
            "at_s": clock(),
            "maddr": None,
            "peer_id": None,
            "epoch": 0,
            "error": None,
            "hopeless": False,  # unrecoverable: the same would happen on every other VM of the run
            "ran": None,
            "notice_at_s": None,  # unix time at which the provider will take this VM, once announced
            "parameters_sha": None,  # of the parameters rounded to float16, once this peer is done
            "join": None,  # fields of metrics.records.JoinRecord, once this peer trains
            "data_position": None,  # experiments/wire/data_position.py: where this slot is in its data
            "epoch_positions": None,  # experiments/wire/epoch_positions.py: where it was at the ends of the last epochs
            "coverage": [],  # the newest rows of coverage.csv (experiments/wire/coverage.py)
            # last checkpoints that this peer stored, the one it began with, why the last one could not be stored, and how
            # many could not
            "checkpoints": {"stored": [], "restored": None, "error": None, "failed": None},
            # the newest metrics.records.UtilisationRecords, without `vm`, oldest first
            "utilisation": [],
            "input_sums": [],  # the newest entries of input_sums.jsonl (experiments/wire/input_sums.py)
            "bad_samples": {},  # those left out: {"count", "first"} by "training" and "heldout" (in the last evaluation)
        }
        self.write_error: OSError | None = None

    @property
    def phase(self) -> str:
        """The last phase set."""
        return str(self._fields["phase"])

    def set(self, **fields: Any) -> None:
        """Update some fields and write the file. Raises KeyError for an unknown field."""
        unknown = set(fields) - set(self._fields)
        if unknown:
            raise KeyError(f"status.json has no field {', '.join(sorted(unknown))}")
        with self._lock:
            self._fields.update(fields, at_s=self._clock())
            self._write()

    def leaving(self, **fields: Any) -> None:
        """Set the phase to "leaving", unless the peer is done or has failed. `fields` as in `set`."""
        ended = self.phase in ("done", "failed")
        self.set(**fields, **({} if ended else {"phase": "leaving"}))

    def warn(self, key: str, text: str, *, recorded: bool = False) -> None:
        """Add a warning, or replace the one with the same key (for counters).

        `recorded`: this peer publishes the same as data too, from which the run's own warning is made.
        """
        with self._lock:
            self._warnings[key] = text
            if recorded:
                self._recorded.add(key)
            self._fields["at_s"] = self._clock()
            self._write()

    def left_out(self, data: Literal["training", "heldout"], found: LeftOut) -> None:
        """Publish the count of bad samples that were left out, and warn of it."""
        with self._lock:
            count = {"count": found.count, "first": found.first.where}
            self._fields["bad_samples"] = {**self._fields["bad_samples"], data: count}
        self.warn(f"bad {found.what}", str(found), recorded=True)

    def _write(self) -> None:
        recorded = [n for n, key in enumerate(self._warnings) if key in self._recorded]
        document = {**self._fields, "warnings": list(self._warnings.values()), "recorded_warnings": recorded}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(document) + "\n")
            temporary.replace(self._path)
        except OSError as error:
            self.write_error = error
