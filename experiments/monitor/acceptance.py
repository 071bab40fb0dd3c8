"""Validation of records read from the DHT. Pure.

Nodes with Hivemind's validators refuse bad records, but a node without them may serve anything. So each record is
checked again here, cheapest check first: size, subkey, roster, signature (with Hivemind's own validator), schema,
numbers, sequence. The newer of two records is the one with the larger sequence number; clocks are not compared, because
the peer's may differ from ours. A rejected record is counted once, however often it is read.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from experiments.monitor.roster import Roster, RosterPeer
from experiments.wire.dht_records import (
    EPOCHS_FIELD,
    EVALUATIONS_FIELD,
    MAX_VALUE_BYTES,
    EpochReport,
    Evaluation,
    RecordError,
    decode_epochs,
    decode_evaluations,
    vm_and_key_of,
)
from experiments.wire.hivemind.values import entries_of, is_sound

_log = logging.getLogger(__name__)
_MAX_CHECKED = 4096  # digests of records already checked
_CLOCK = "clock"  # a rejection that is checked again later


@dataclass(frozen=True)
class Raw:
    """Entry of one subkey, as served by a DHT node."""

    key: bytes  # DHT id of the key
    subkey: Any  # deserialised, of any type
    value: bytes  # serialised, with the signature
    expiration: float

    @property
    def digest(self) -> bytes:
        """SHA-256 that identifies this entry."""
        subkey: bytes = MSGPackSerializer.dumps(self.subkey)
        return hashlib.sha256(
            b"%d %d %r " % (len(self.key), len(subkey), self.expiration) + self.key + subkey + self.value
        ).digest()


def raw_entries(key: bytes, value: object) -> list[Raw]:
    """Return the entries of a node's answer for a key. Entries of wrong types, and those above `MAX_ENTRIES`, are dropped."""
    sound = [
        (subkey, entry)
        for subkey, entry in entries_of(value)
        if is_sound(subkey, entry.value, entry.expiration_time, math.inf)
    ]
    return [Raw(key, subkey, entry.value, float(entry.expiration_time)) for subkey, entry in sound]


@dataclass(frozen=True)
class Rejection:
    """A rejected record."""

    reason: str
    vm: str  # the VM that it claims to be from; "" if that is not on the roster
    detail: str


class Verifier:
    """Verify signatures in the same way as Hivemind's nodes."""

    def __init__(self) -> None:
        self._validator: Any = RSASignatureValidator()

    def payload(self, raw: Raw) -> bytes:
        """Verify an entry and return its value without the signature. Raises RecordError("signature")."""
        record = DHTRecord(raw.key, MSGPackSerializer.dumps(raw.subkey), raw.value, raw.expiration)
        try:
            if self._validator.validate(record):
                return self._validator.strip_value(record)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # an invalid public key
            raise RecordError("signature", repr(error)) from error
        raise RecordError("signature", "missing or not by the owner's key")


@dataclass
class _Seen:
    sequence: int = -1
    rows: dict[int, Any] = field(default_factory=dict[int, Any])  # by epoch


class Gate:
    """Validates entries and remembers the accepted records.

    Reasons of a rejection: "size", "subkey", "roster" (unknown VM, or not its key), "signature", "schema", "identity",
    "values", "replayed" (an older sequence after a newer one), "changed" (different content for an epoch already
    accepted), "unreadable" (a bug of ours), "clock" (times more than a day from ours; checked again at each reading, since
    either clock may be corrected).
    """

    def __init__(self, run_key: str, verifier: Verifier) -> None:
        self._fields: dict[bytes, str] = {}
        for name in (EPOCHS_FIELD, EVALUATIONS_FIELD):
            self._fields[DHTID.generate(source=f"{run_key}_{name}").to_bytes()] = name
        self._verifier = verifier
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._checked: OrderedDict[bytes, str] = OrderedDict()  # digest: reason, "" if accepted

    @property
    def keys(self) -> list[bytes]:
        """DHT ids of the keys that this gate validates."""
        return list(self._fields)

    def newest_epoch(self, vm: str) -> int:
        """Return the newest accepted epoch of a VM, 0 if none."""
        seen = self._seen.get((EPOCHS_FIELD, vm))
        return max(seen.rows, default=0) if seen else 0

    def restore(self, name: str, vm: str, epoch: int, row: EpochReport | Evaluation) -> None:
        """Mark a record as accepted that an earlier process of this monitor wrote, so that it is not written again."""
        self._seen.setdefault((name, vm), _Seen()).rows[epoch] = row

    def offer(
        self, entries: Iterable[Raw], roster: Roster, now_s: float
    ) -> tuple[list[EpochReport | Evaluation], list[Rejection]]:
        """Validate the entries of one scrape, from all replicas, and return the new records and the rejections.

        The entries of a subkey are tried from the latest expiration down to the first valid one. Older copies are
        replicas that missed a store; they are ignored and not counted as rejections. Entries that were checked in an
        earlier scrape are not checked again.
        """
        new: list[EpochReport | Evaluation] = []
        rejected: list[Rejection] = []
        settled: set[tuple[bytes, bytes]] = set()
        for raw in sorted(entries, key=lambda entry: entry.expiration, reverse=True):
            place = (raw.key, MSGPackSerializer.dumps(raw.subkey))
            if raw.key not in self._fields or place in settled:
                continue
            digest = raw.digest
            if (before := self._checked.get(digest)) is not None:
                self._checked.move_to_end(digest)
                if not before:
                    settled.add(place)
                if before != _CLOCK:
                    continue
            vm = reason = ""
            try:
                peer = _owner(raw, roster)
                vm = peer.vm
                new += self._accept(self._fields[raw.key], raw, peer, now_s)
                settled.add(place)
            except RecordError as error:
                reason = error.reason
                if reason != before:
                    rejected.append(Rejection(reason, vm, str(error)))
            except Exception as error:  # noqa: BLE001 - logged: other records must still be read
                _log.exception("cannot read a record of %s", vm or "an unknown VM")
                reason = "unreadable"
                rejected.append(Rejection(reason, vm, repr(error)))
            self._checked[digest] = reason
            while len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)
        return new, rejected

    def roster_changed(self) -> None:
        """Check entries again that were rejected because of the roster, which may list their VM now."""
        self._checked = OrderedDict((d, reason) for d, reason in self._checked.items() if reason != "roster")

    def _accept(self, name: str, raw: Raw, peer: RosterPeer, now_s: float) -> list[EpochReport | Evaluation]:
        payload = self._verifier.payload(raw)
        try:
            value: Any = MSGPackSerializer.loads(payload)
        except Exception as error:  # msgpack's and its extensions' errors are of many types
            raise RecordError("schema", f"not msgpack: {error!r}") from error
        decode: Any = decode_epochs if name == EPOCHS_FIELD else decode_evaluations
        sequence, rows = decode(value, peer.vm, peer.slot, peer.generation, now_s)
        seen = self._seen.setdefault((name, peer.vm), _Seen())
        if sequence < seen.sequence:
            raise RecordError("replayed", f"{peer.vm}: sequence {sequence} after {seen.sequence}")
        by_epoch = {(row.epoch.epoch if name == EPOCHS_FIELD else row.epoch): row for row in rows}
        for epoch, row in by_epoch.items():
            if epoch in seen.rows and row != seen.rows[epoch]:
                raise RecordError("changed", f"{peer.vm}: different content for epoch {epoch}")
        fresh = [row for epoch, row in by_epoch.items() if epoch not in seen.rows]
        seen.sequence = sequence
        seen.rows |= by_epoch
        return fresh


def _owner(raw: Raw, roster: Roster) -> RosterPeer:
    """Return the peer of the roster that owns the entry's subkey. Raises RecordError."""
    if len(raw.value) > MAX_VALUE_BYTES:
        raise RecordError("size", f"{len(raw.value)} bytes, the maximum is {MAX_VALUE_BYTES}")
    vm, key = vm_and_key_of(raw.subkey)
    peer = roster.peers.get(vm)
    if peer is None or peer.record_public_key != key:
        raise RecordError("roster", f"{vm} with this key is not on the roster")
    if not math.isfinite(raw.expiration):
        raise RecordError("values", f"{vm}: expires at {raw.expiration}")
    return peer
