"""What a run's checkpoints use of the object store besides their upload: downloads, and bytes that are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from metrics.events.checkpoints import Restored, Stored

DEFAULT_KEEP = 2


@dataclass(frozen=True, slots=True)
class CheckpointUse:
    """The checkpoints of a run as its journal has them. Bytes are those of the files that the peers stored and verified."""

    stored: tuple[Stored, ...] = ()
    restored: tuple[Restored, ...] = ()
    keep: int = DEFAULT_KEEP  # `checkpoint.keep`

    def until(self, at_s: float) -> CheckpointUse:
        """What was known at a time, unix s."""
        return replace(
            self,
            stored=tuple(one for one in self.stored if one.at_s <= at_s),
            restored=tuple(one for one in self.restored if one.at_s <= at_s),
        )

    def read_bytes(self) -> dict[str, int]:
        """Bytes of the checkpoints that each VM downloaded and began from. Downloads that failed are not known."""
        found: dict[str, int] = {}
        for one in self.restored:
            found[one.vm] = found.get(one.vm, 0) + one.bytes
        return found

    def kept(self, now_s: float) -> list[tuple[int, float]]:
        """(bytes, seconds in the store until `now_s`) of each stored checkpoint.

        A checkpoint is in the store until another one that it is retained for has taken its place
        (`experiments.checkpoints.listing.removable`): the newest `keep` epochs of those up to the one just stored.
        """
        there: list[Stored] = []
        found: list[tuple[int, float]] = []
        for new in sorted(self.stored, key=lambda one: one.at_s):
            again = [one for one in there if one.name == new.name]  # the same VM replaced it
            counted = [one for one in _newest_first(there) if one.epoch <= new.epoch and one not in again]
            gone = [*again, *counted[max(1, self.keep) - 1 :]]
            found += [(one.bytes, max(0.0, new.at_s - one.at_s)) for one in gone]
            there = [one for one in there if one not in gone] + [new]
        return found + [(one.bytes, max(0.0, now_s - one.at_s)) for one in there]


def _newest_first(stored: Iterable[Stored]) -> list[Stored]:
    return sorted(stored, key=lambda one: (one.epoch, one.at_s), reverse=True)
