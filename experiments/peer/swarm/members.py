"""Parsing of peers' announcements and progress reports in the DHT. Records are untrusted: invalid ones never raise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.p2p import PeerID

from cloud.vm_report import is_maddr
from experiments.peer.swarm.reachability import peer_of
from experiments.wire.dht_records import MEMBER_PHASES, RecordError, vm_and_key_of

# (VM name, record key as OpenSSH text, libp2p id in base58) -> whether they belong together.
IsMember = Callable[[str, str, str], bool]
_MOST_AHEAD_S = 2 * 3600.0  # an announcement is valid for 30 s; the rest allows for clock differences
_MOST_SAMPLES, _MOST_SPS = 2**60, 1e9
_MOST_EPOCH = 2**40


@dataclass(frozen=True)
class Member:
    """A peer as announced in the DHT."""

    vm: str
    slot: str
    phase: str  # "ready", "training", "serving"
    epoch: int
    maddr: str
    until_s: float = 0.0  # expiration of the announcement, DHT time: later in each new one
    weights: str = ""  # digest of its start weights; "": not announced


def anybody(_vm: str, _key: str, _peer_id: str) -> bool:
    """Accept every peer: the `IsMember` of an open swarm."""
    return True


def parse_members(value: Any, now_s: float, is_member: IsMember = anybody) -> list[Member]:
    """Parse the members in a DHT dictionary record. Invalid entries and those not written by their owner are skipped.

    `now_s`: DHT time. The DHT's nodes have checked the signatures (`experiments.wire.dht_records`).
    """
    found = [
        member
        for subkey, entry in (value.items() if isinstance(value, dict) else ())
        if (member := _member(subkey, entry, now_s, is_member)) is not None
    ]
    return sorted(found, key=lambda member: member.vm)


def _member(subkey: object, entry: Any, now_s: float, is_member: IsMember) -> Member | None:
    raw, until_s = getattr(entry, "value", None), getattr(entry, "expiration_time", None)
    if not isinstance(raw, list | tuple) or len(raw) not in (5, 6) or not isinstance(until_s, int | float):
        return None
    vm, slot, phase, epoch, maddr, *weights = raw
    try:
        owner, key = vm_and_key_of(subkey)
    except RecordError:
        return None
    texts = all(isinstance(text, str) and len(text) <= 300 for text in (vm, slot, *weights))
    if not texts or vm != owner or phase not in MEMBER_PHASES or not is_maddr(maddr):
        return None
    if type(epoch) is not int or not 0 <= epoch <= _MOST_EPOCH or not until_s <= now_s + _MOST_AHEAD_S:
        return None
    if libp2p_id(peer_of(maddr)) is None or not is_member(vm, key, peer_of(maddr)):
        return None
    return Member(vm, slot, phase, epoch, maddr, float(until_s), *weights)


def libp2p_id(text: str) -> PeerID | None:
    """Parse a base58 peer id; None if it is invalid."""
    try:
        return PeerID.from_base58(text)
    except Exception:  # noqa: BLE001 - base58 and multihash raise many types of errors
        return None


def valid_reports(metadata: Any, is_member: IsMember = anybody) -> Mapping[Any, Any] | None:
    """Keep the progress reports that Hivemind can process and that members wrote about themselves."""
    if not isinstance(metadata, dict):
        return None
    return {subkey: e for subkey, e in metadata.items() if _is_sound(subkey, e, is_member)}


def _is_sound(subkey: object, entry: Any, is_member: IsMember) -> bool:
    if not hasattr(entry, "value"):
        return False
    value = entry.value
    if value is None:
        return True  # withdrawn
    try:
        progress = LocalTrainingProgress.parse_obj(value)
        peer_id = PeerID(progress.peer_id).to_base58()
    except Exception:  # noqa: BLE001 - pydantic and libp2p raise many types of errors: not a report
        return False
    if not (isinstance(value, dict) and isinstance(value.get("samples_per_second"), int | float)):
        return False
    numbers = math.isfinite(progress.time) and 0.0 <= progress.samples_per_second <= _MOST_SPS
    small = progress.epoch <= _MOST_EPOCH and progress.samples_accumulated <= _MOST_SAMPLES
    return numbers and small and is_member("", owner_key_of(subkey) or "", peer_id)


def owner_key_of(subkey: object) -> str | None:
    """Return the key (OpenSSH text) in a Hivemind subkey `[owner:ssh-rsa ...]`; None for any other subkey."""
    if not isinstance(subkey, bytes) or not subkey.startswith(b"[owner:") or not subkey.endswith(b"]"):
        return None
    return subkey[len(b"[owner:") : -1].decode(errors="replace")


def declared_peers(value: Any) -> Sequence[PeerID]:
    """Return the peers in Hivemind's list of averagers that have not withdrawn their declaration."""
    if not isinstance(value, dict):
        return []
    named = [raw for raw, entry in value.items() if getattr(entry, "value", None) is not None]
    texts = [PeerID(raw) for raw in named if isinstance(raw, bytes) and 8 <= len(raw) <= 128]
    return [peer for peer in texts if libp2p_id(str(peer)) is not None]
