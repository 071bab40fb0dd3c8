"""Which rounds a peer's parameters have been through: equal lineages, equal parameters.

Pure. Every round's group tells each other, in the data that matchmaking gathers anyhow, at which epoch they are
and of which lineage; who has missed a round, or has gone through another one, learns it before it can spread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

FIRST = ""  # before any round
_DIGITS = 16


@dataclass(frozen=True, order=True)
class Told:
    """What a peer says of itself when it looks for a group."""

    epoch: int
    lineage: str
    nonce: str  # new for each attempt: no two rounds have the same
    peers: int = 1  # that it knows to be training, itself included
    attempt: int = 1  # at this epoch's round
    lost: int = 0  # of those that went before: began, and missed a part

    def as_list(self) -> list[Any]:
        """For the wire."""
        return list(astuple(self))


def parse_told(value: Any) -> Told | None:
    """What a peer sent; None for what does not look like it."""
    kinds = (int, str, str, int, int, int)
    if not isinstance(value, list | tuple) or len(value) != len(kinds):
        return None
    return Told(*value) if all(map(isinstance, value, kinds)) else None


def extended(lineage: str, event: str) -> str:
    """The lineage after `event` changed the parameters, or passed over a round without a change."""
    return hashlib.sha256(f"{lineage}/{event}".encode()).hexdigest()[:_DIGITS]


def alone(lineage: str, peer: object) -> str:
    """The lineage after the peer of that id stepped with its own gradients only."""
    return extended(lineage, f"alone {peer}")


def reference(group: Mapping[Any, Told | None]) -> tuple[int, str] | None:
    """Whose parameters count: the newest epoch's, of those most peers', of those the greatest lineage's."""
    known = [(told.epoch, told.lineage) for told in group.values() if told is not None]
    return max(known, key=lambda one: (one[0], known.count(one), one[1]), default=None)


def expected_peers(group: Mapping[Any, Told | None]) -> int | None:
    """How many peers the group should have, if it is to be refused for having fewer; all members find the same.

    A first attempt: all. Two groups that formed apart find together, and one who does not come is waited for once.
    Later ones: more than half, so that no two groups average apart that know of the same peers. The dead are not known as
    training soon after; and who has little time left says that it knows of nobody, so that any group will do.
    """
    known = [told for told in group.values() if told is not None]
    most = max((told.peers for told in known), default=0)
    needed = most if all(told.attempt == 1 for told in known) else most // 2 + 1
    return most if len(group) < min(needed, most) else None


def patient(group: Mapping[Any, Told | None]) -> bool:
    """Whether the group's round goes on for those whom it may succeed for when a part is lost; all members find the same.

    The first one is over for all, to begin anew at once without who was lost. Where two of a group cannot reach each other,
    it would be over as soon as it began, again and again: whoever has lost one lets the next one go on.
    """
    return any(told.lost > 0 for told in group.values() if told is not None)


def astray(group: Mapping[Any, Told | None], own: Told) -> bool:
    """Whether this peer's parameters are not those that the group's round is for."""
    return reference(group) not in (None, (own.epoch, own.lineage))


def after_round(group: Mapping[Any, Told | None], own: Told) -> str:
    """The lineage of all that took part in the group's round and were not astray."""
    members = sorted(told for told in group.values() if told is not None)
    return extended(own.lineage, "/".join(f"{told.epoch}:{told.nonce}" for told in members))
