"""A slot's positions in its data at the ends of epochs: reported in status.json, kept by the controller, given to a replacement."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from experiments.wire.data_position import DataPosition

IN_STATUS = 32  # epochs that a peer reports
IN_STATUS_VALUES = 2000  # JSON values of these; a status.json has at most 10,000 values
MAX_EPOCHS = 512  # that are kept of a slot
MAX_VALUES = 8000  # JSON values of these
_VALUES = 7  # of an entry without finished shards: the pair, the epoch, the position and what it holds
_NEWEST = 32  # epochs, counted back from the newest, of which every one is kept


@dataclass(frozen=True)
class EpochPositions:
    """Positions by epoch. That of epoch `since` is where the peer began; those of later ones are where it was at their ends."""

    since: int  # epoch with which the peer that reported them began to train; 0: from scratch
    at: Mapping[int, DataPosition] = field(default_factory=dict[int, DataPosition])

    def upto(self, epoch: int) -> DataPosition | None:
        """The position at the end of `epoch`, or of the newest known epoch before it. None: neither is known."""
        known = [one for one in self.at if one <= epoch]
        return self.at[max(known)] if known else None

    def newest(self, epochs: int, values: int) -> EpochPositions:
        """The newest ones, at most `epochs` and at most `values` JSON values."""
        kept: dict[int, DataPosition] = {}
        for epoch in sorted(self.at, reverse=True)[:epochs]:
            values -= _VALUES + 2 * len(self.at[epoch].done)
            if values < 0:
                break
            kept[epoch] = self.at[epoch]
        return EpochPositions(self.since, dict(sorted(kept.items())))

    def thinned(self, keep: Set[int]) -> EpochPositions:
        """Bounded: all of the newest epochs, fewer of older ones, and those in `keep`.

        Of the epochs 32 to 63 before the newest, the multiples of 2 are kept, of those 64 to 127 before it the multiples
        of 4, and so on. If these are more than `MAX_EPOCHS` or `MAX_VALUES`, the oldest are left out.
        """
        newest = max(self.at, default=0)
        some = {n: at for n, at in self.at.items() if n in keep or n % _spacing(newest - n) == 0}
        return EpochPositions(self.since, some).newest(MAX_EPOCHS, MAX_VALUES)

    def followed_by(self, other: EpochPositions, *, same_peer: bool) -> EpochPositions:
        """Add what the slot's peer reports. A new peer's epochs after its `since` replace those of work that was lost.

        A position that is known of `since` stays: a peer that joins a living swarm begins after it, in the middle of the
        next epoch, if the slot's last peer was lost there.
        """
        own = self.at if same_peer else {n: at for n, at in self.at.items() if n <= other.since}
        kept = {n: at for n, at in own.items() if n <= other.since}
        return EpochPositions(other.since, dict(sorted({**own, **other.at, **kept}.items())))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; positions that `DataPosition.to_json` cannot write are left out."""
        entries = ([epoch, position.to_json()] for epoch, position in sorted(self.at.items()))
        return {"since": self.since, "at": [entry for entry in entries if entry[1] is not None]}

    @classmethod
    def from_json(cls, entry: Any) -> EpochPositions | None:
        """Parse what `to_json` wrote; None if it is anything else, or has too many epochs or values."""
        if not isinstance(entry, Mapping) or set(entry) != {"since", "at"}:
            return None
        since, pairs = entry["since"], entry["at"]
        if not _is_epoch(since) or not isinstance(pairs, list) or len(pairs) > MAX_EPOCHS:
            return None
        at: dict[int, DataPosition] = {}
        values = 0
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2 or not _is_epoch(pair[0]):
                return None
            position = DataPosition.from_json(pair[1])
            if position is None or (at and pair[0] <= next(reversed(at))):
                return None
            at[pair[0]] = position
            values += _VALUES + 2 * len(position.done)
            if values > MAX_VALUES:
                return None
        return cls(since, at)


def _spacing(age: int) -> int:
    """Of the epochs that many before the newest, the multiples of this are kept."""
    return 1 << (age // _NEWEST).bit_length()


def _is_epoch(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
