"""Lineages: hashes over the rounds that led to a peer's parameters. Equal lineages mean equal parameters.

Pure. The peers of a group exchange epoch and lineage in the data that matchmaking gathers anyway. So a peer that missed
a round, or took part in a different one, notices it before it can affect the others.
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
    """Version of a peer's parameters and further data for its group, sent during matchmaking."""

    epoch: int
    lineage: str
    nonce: str  # new for each attempt, so that no two rounds have the same nonces
    peers: int = 1  # number of peers known to be training, including itself
    attempt: int = 1  # number of the attempt at this epoch's round
    lost: int = 0  # number of previous attempts that began to average and lost a part

    def as_list(self) -> list[Any]:
        """Convert to a list for the wire."""
        return list(astuple(self))


def parse_version(value: Any) -> PeerVersion | None:
    """Parse a version sent by a peer; None if it is invalid."""
    kinds = (int, str, str, int, int, int)
    if not isinstance(value, list | tuple) or len(value) != len(kinds):
        return None
    return PeerVersion(*value) if all(map(isinstance, value, kinds)) else None


def extended(lineage: str, event: str) -> str:
    """Return the lineage after `event`, which changed the parameters or skipped a round."""
    return hashlib.sha256(f"{lineage}/{event}".encode()).hexdigest()[:_DIGITS]


def alone(lineage: str, peer: object) -> str:
    """Return the lineage after the peer with this id stepped with its own gradients only."""
    return extended(lineage, f"alone {peer}")


def reference(group: Mapping[Any, PeerVersion | None]) -> tuple[int, str] | None:
    """The version to converge on: newest epoch, then majority, then largest hash."""
    known = [(version.epoch, version.lineage) for version in group.values() if version is not None]
    return max(known, key=lambda one: (one[0], known.count(one), one[1]), default=None)


def expected_peers(group: Mapping[Any, PeerVersion | None]) -> int | None:
    """Return the number of peers the group should have if it is too small, else None. The same on all members.

    The first attempt requires all peers, so that two separately formed groups merge; a missing peer is waited for once.
    Later attempts require more than half, so that two groups that know of the same peers never average separately. Dead
    peers soon stop counting as training, and a peer with little time left reports that it knows of no others, so that
    any group is accepted.
    """
    known = [version for version in group.values() if version is not None]
    most = max((version.peers for version in known), default=0)
    needed = most if all(version.attempt == 1 for version in known) else most // 2 + 1
    return most if len(group) < min(needed, most) else None


def patient(group: Mapping[Any, PeerVersion | None]) -> bool:
    """Whether the group's round continues after the loss of a part, for peers that can still succeed. The same on all
    members.

    The first attempt ends for all peers, so that they retry at once without the lost one. But if two peers of a group
    cannot reach each other, every attempt would end that way. So after an attempt that lost a part, the next one continues.
    """
    return any(version.lost > 0 for version in group.values() if version is not None)


def astray(group: Mapping[Any, PeerVersion | None], own: PeerVersion) -> bool:
    """Whether this peer's parameters differ from those for which the group averages."""
    return reference(group) not in (None, (own.epoch, own.lineage))


def after_round(group: Mapping[Any, PeerVersion | None], own: PeerVersion) -> str:
    """Return the lineage after the group's round, for members that were not astray."""
    members = sorted(version for version in group.values() if version is not None)
    return extended(own.lineage, "/".join(f"{version.epoch}:{version.nonce}" for version in members))
