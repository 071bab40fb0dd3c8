"""Which rounds a peer's parameters have been through: equal lineages, equal parameters.

Pure. The peers of a group exchange epoch and lineage in the data that matchmaking gathers anyway. A peer that missed a
round, or went through another one, learns it before it can affect the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

FIRST = ""  # before any round
_DIGITS = 16


@dataclass(frozen=True, order=True)
class PeerVersion:
    """The version of a peer's parameters, and what else its group needs to know, sent while matchmaking."""

    epoch: int
    lineage: str
    nonce: str  # new for each attempt: no two rounds have the same
    peers: int = 1  # that it knows to be training, itself included
    attempt: int = 1  # at this epoch's round
    lost: int = 0  # of those that went before: began, and missed a part

    def as_list(self) -> list[Any]:
        """For the wire."""
        return list(astuple(self))


def parse_version(value: Any) -> PeerVersion | None:
    """Parse what a peer sent; None for anything else."""
    kinds = (int, str, str, int, int, int)
    if not isinstance(value, list | tuple) or len(value) != len(kinds):
        return None
    return PeerVersion(*value) if all(map(isinstance, value, kinds)) else None


def extended(lineage: str, event: str) -> str:
    """The lineage after `event` changed the parameters, or passed over a round without a change."""
    return hashlib.sha256(f"{lineage}/{event}".encode()).hexdigest()[:_DIGITS]


def alone(lineage: str, peer: object) -> str:
    """The lineage after the peer of that id stepped with its own gradients only."""
    return extended(lineage, f"alone {peer}")


def reference(group: Mapping[Any, PeerVersion | None]) -> tuple[int, str] | None:
    """The version to converge on: newest epoch, then majority, then largest hash."""
    known = [(version.epoch, version.lineage) for version in group.values() if version is not None]
    return max(known, key=lambda one: (one[0], known.count(one), one[1]), default=None)


def expected_peers(group: Mapping[Any, PeerVersion | None]) -> int | None:
    """How many peers the group should have, if it is to be refused for having fewer; all members find the same.

    A first attempt: all. Two groups that formed apart find together, and one who does not come is waited for once.
    Later ones: more than half, so that no two groups average apart that know of the same peers. The dead are not known as
    training soon after; and a peer with little time left reports that it knows of nobody, so that any group is accepted.
    """
    known = [version for version in group.values() if version is not None]
    most = max((version.peers for version in known), default=0)
    needed = most if all(version.attempt == 1 for version in known) else most // 2 + 1
    return most if len(group) < min(needed, most) else None


def patient(group: Mapping[Any, PeerVersion | None]) -> bool:
    """Whether the group's round goes on for those whom it may succeed for when a part is lost; all members find the same.

    The first one is over for all, to begin anew at once without who was lost. Where two of a group cannot reach each other,
    it would be over as soon as it began, again and again: whoever has lost one lets the next one go on.
    """
    return any(version.lost > 0 for version in group.values() if version is not None)


def astray(group: Mapping[Any, PeerVersion | None], own: PeerVersion) -> bool:
    """Whether this peer's parameters are not those that the group's round is for."""
    return reference(group) not in (None, (own.epoch, own.lineage))


def after_round(group: Mapping[Any, PeerVersion | None], own: PeerVersion) -> str:
    """The lineage of all that took part in the group's round and were not astray."""
    members = sorted(version for version in group.values() if version is not None)
    return extended(own.lineage, "/".join(f"{version.epoch}:{version.nonce}" for version in members))
