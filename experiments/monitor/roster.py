"""The roster: the peers whose records the monitor accepts. The controller writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.wire.dht_records import RecordError, subkey_of


class RosterError(Exception):
    """roster.json cannot be read."""


@dataclass(frozen=True)
class RosterPeer:
    """One VM that belongs to the run."""

    vm: str
    slot: str
    generation: int
    record_public_key: str  # OpenSSH text
    maddr: str | None  # None until the peer has reported its address
    peer_id: str | None = None  # libp2p, base58; None: not known in advance


class Roster:
    """The peers, by VM and by record key."""

    def __init__(self, peers: Iterable[RosterPeer] = ()) -> None:
        """Index the peers. Raises RosterError if a name or key is used twice, or a name cannot be part of a subkey."""
        self.peers: dict[str, RosterPeer] = {}
        self.by_key: dict[str, RosterPeer] = {}
        for peer in peers:
            try:
                subkey_of(peer.vm, peer.record_public_key)
            except RecordError as error:
                raise RosterError(str(error)) from error
            if peer.vm in self.peers or peer.record_public_key in self.by_key:
                raise RosterError(f"{peer.vm}: its name or record key is on the roster twice")
            self.peers[peer.vm] = self.by_key[peer.record_public_key] = peer

    def maddrs(self) -> dict[str, str]:
        """Return the known multiaddresses, by VM."""
        return {vm: peer.maddr for vm, peer in self.peers.items() if peer.maddr}


def load_roster(path: Path) -> Roster:
    """Read roster.json. Raises RosterError with the file and the problem."""
    try:
        raw: Any = json.loads(path.read_text())
        return Roster(_peer(row) for row in raw["peers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RosterError(f"{path}: not a roster: {error!r}; the controller writes this file") from error
    except RosterError as error:
        raise RosterError(f"{path}: {error}") from error


def _peer(row: Mapping[str, Any]) -> RosterPeer:
    maddr = row.get("maddr") or None
    return RosterPeer(
        vm=str(row["vm"]),
        slot=str(row["slot"]),
        generation=int(row["generation"]),
        record_public_key=str(row["record_public_key"]).strip(),
        maddr=maddr,
        peer_id=row.get("peer_id") or (str(maddr).rpartition("/p2p/")[2] or None if maddr else None),
    )
