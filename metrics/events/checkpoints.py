"""Checkpoints that the peers stored and began from, as far as the journal knows. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from metrics.records import CHECKPOINT_FAILED, CHECKPOINT_RESTORED, CHECKPOINT_STORED, EventRecord


@dataclass(frozen=True, slots=True)
class Stored:
    """One checkpoint with a complete manifest in the store. Times are the writer's."""

    name: str
    vm: str
    epoch: int
    bytes: int  # of its files
    sent_bytes: int  # payload that was sent for it, repeated parts included
    copy_s: float  # for which training was interrupted
    upload_s: float
    at_s: float  # unix


@dataclass(frozen=True, slots=True)
class Restored:
    """A VM that began from a checkpoint."""

    name: str
    prefix: str  # s3://bucket/prefix/run
    vm: str
    epoch: int
    bytes: int
    seconds: float  # of the download
    at_s: float  # unix, by the VM's clock


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What the journal of a run says about checkpoints, oldest first."""

    stored: tuple[Stored, ...] = ()
    restored: tuple[Restored, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()  # (VM, error) of uploads that failed, as far as they were seen
    failures: int = 0  # with those between two looks at a VM

    @property
    def newest(self) -> Stored | None:
        """The checkpoint of the newest epoch; the last one of several."""
        return max(self.stored, key=lambda one: (one.epoch, one.at_s), default=None)

    @property
    def epoch(self) -> int:
        """The newest epoch whose state was stored, or that a peer began from. 0: none."""
        return max((one.epoch for one in (*self.stored, *self.restored)), default=0)

    @property
    def sentence(self) -> str:
        """The warning about failed uploads; "" if none failed."""
        if not self.failed:
            return ""
        vm, error = self.failed[-1]
        count = f"{self.failures} times" if self.failures > 1 else "once"
        return f"Storing a checkpoint failed {count}, and training went on; the last error, of {vm}: {error}."

    def to_json(self) -> dict[str, Any]:
        """Return JSON types only."""
        newest = self.newest
        return {
            "stored": len(self.stored),
            "failed": self.failures,
            "bytes": sum(one.bytes for one in self.stored),
            "sent_bytes": sum(one.sent_bytes for one in self.stored),
            "newest": None
            if newest is None
            else {"name": newest.name, "epoch": newest.epoch, "vm": newest.vm, "bytes": newest.bytes, "at_s": newest.at_s},
            "restored": [
                {"vm": one.vm, "name": one.name, "prefix": one.prefix, "epoch": one.epoch, "bytes": one.bytes,
                 "seconds": one.seconds, "at_s": one.at_s}
                for one in self.restored
            ],
        }  # fmt: skip


def checkpoints_of(events: Iterable[EventRecord]) -> Checkpoints:
    """Read the notes of a journal."""
    stored: list[Stored] = []
    restored: list[Restored] = []
    failed: list[tuple[str, str]] = []
    counts: dict[str, int] = {}  # by VM
    for event in events:
        if event.kind == CHECKPOINT_FAILED:
            failed.append((event.vm, event.cause))
            seen = counts.get(event.vm, 0)
            # rows of earlier versions have no count
            counts[event.vm] = max(seen, json.loads(event.data_json or "{}").get("count") or seen + 1)
        elif event.kind == CHECKPOINT_STORED:
            data = json.loads(event.data_json)
            known = ("name", "epoch", "bytes", "sent_bytes", "copy_s", "upload_s", "at_s")
            stored.append(Stored(vm=event.vm, **{key: data[key] for key in known}))
        elif event.kind == CHECKPOINT_RESTORED:
            data = json.loads(event.data_json)
            known = ("name", "prefix", "epoch", "bytes", "seconds", "at_s")
            restored.append(Restored(vm=event.vm, **{key: data[key] for key in known}))
    return Checkpoints(tuple(stored), tuple(restored), tuple(failed), sum(counts.values()))
