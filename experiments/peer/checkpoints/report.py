"""What status.json tells of a peer's checkpoints."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

from experiments.peer.status import Status

_SHOWN = 5  # stored checkpoints


@dataclass(frozen=True)
class StoredEntry:
    """A checkpoint that this peer has stored."""

    name: str
    epoch: int
    bytes: int  # of its files
    sent_bytes: int  # since the last stored one, with what was sent again or in vain
    copy_s: float  # for which training waited
    upload_s: float  # in the background, files written included
    at_s: float  # unix time at which its manifest was stored


@dataclass(frozen=True)
class FailedEntry:
    """The last checkpoint that this peer could not store. It stays when a later one is stored."""

    count: int  # of failures so far, with this one
    epoch: int
    error: str


@dataclass(frozen=True)
class RestoredEntry:
    """The checkpoint with which this peer began."""

    name: str
    prefix: str
    epoch: int
    bytes: int
    seconds: float  # of the download
    at_s: float


class CheckpointReport:
    """The status field "checkpoints". Thread-safe."""

    def __init__(self, status: Status) -> None:
        self._status, self._lock = status, threading.Lock()
        self._stored: tuple[StoredEntry, ...] = ()
        self._restored: RestoredEntry | None = None
        self._failed: FailedEntry | None = None
        self._error: str | None = None

    def stored(self, entry: StoredEntry) -> None:
        """Add a checkpoint; the error of an earlier one is over."""
        with self._lock:
            self._stored, self._error = (*self._stored, entry)[-_SHOWN:], None
            self._publish()

    def restored(self, entry: RestoredEntry) -> None:
        """Tell with which checkpoint training begins."""
        with self._lock:
            self._restored = entry
            self._publish()

    def failed(self, epoch: int, error: str) -> None:
        """Tell why a checkpoint could not be stored, also as a warning."""
        with self._lock:
            count = 1 if self._failed is None else self._failed.count + 1
            self._failed, self._error = FailedEntry(count, epoch, error), error
            self._publish()
        text = f"the checkpoint of epoch {epoch} was not stored: {error}"
        self._status.warn(f"checkpoint {epoch}", text, recorded=True)

    def warn(self, key: str, text: str) -> None:
        """Add a warning about checkpoints."""
        self._status.warn(f"checkpoint {key}", text)

    def _publish(self) -> None:
        shown: dict[str, Any] = {
            "stored": [asdict(entry) for entry in self._stored],
            "restored": None if self._restored is None else asdict(self._restored),
            "error": self._error,
            "failed": None if self._failed is None else asdict(self._failed),
        }
        self._status.set(checkpoints=shown)
