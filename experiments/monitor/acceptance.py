"""What of that which the DHT serves may count: a pure gate that believes nothing it has not checked.

Nodes with Hivemind's validators refuse bad records, but a node without them may serve anything, so
each record is checked here again, cheapest first: size, subkey, roster, signature (Hivemind's
own validator), schema, numbers, sequence. How new a record is its sequence number tells, not a clock: the peer's may
differ from ours. A rejected record is counted once, however often it is read.
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
_REMEMBERED = 4096  # digests of records already judged
_CLOCK = "clock"  # a refusal that another moment may take back


@dataclass(frozen=True)
class Raw:
    """One subkey's entry as a DHT node served it."""

    key: bytes  # DHT id of the key
    subkey: Any  # deserialised, of any type
    value: bytes  # serialised, with the signature
    expiration: float

    @property
    def digest(self) -> bytes:
        """Names this very entry."""
        subkey: bytes = MSGPackSerializer.dumps(self.subkey)
        return hashlib.sha256(
            b"%d %d %r " % (len(self.key), len(subkey), self.expiration) + self.key + subkey + self.value
        ).digest()


def raw_entries(key: bytes, value: object) -> list[Raw]:
    """What a node answered for a key, as entries of the right types; the rest, and what is over a flood's bound, is not read."""
    sound = [
        (subkey, entry)
        for subkey, entry in entries_of(value)
        if is_sound(subkey, entry.value, entry.expiration_time, math.inf)
    ]
    return [Raw(key, subkey, entry.value, float(entry.expiration_time)) for subkey, entry in sound]


@dataclass(frozen=True)
class Wrong:
    """A record that was refused. `vm` is whose it claims to be, "" when that is not on the roster."""

    reason: str
    vm: str
    detail: str


class Verifier:
    """Checks signatures as Hivemind's nodes do."""

    def __init__(self) -> None:
        self._validator: Any = RSASignatureValidator()

    def payload(self, raw: Raw) -> bytes:
        """The value without its signature. Raises RecordError("signature")."""
        record = DHTRecord(raw.key, MSGPackSerializer.dumps(raw.subkey), raw.value, raw.expiration)
        try:
            if self._validator.validate(record):
                return self._validator.strip_value(record)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # a public key that is none
            raise RecordError("signature", repr(error)) from error
        raise RecordError("signature", "missing or not by the owner's key")


@dataclass
class _Seen:
    sequence: int = -1
    rows: dict[int, Any] = field(default_factory=dict[int, Any])  # by epoch


class Gate:
    """Takes entries, gives back what is new and true, and what is wrong. State: what was accepted so far.

    Reasons of refusal: "size", "subkey", "roster" (VM unknown, or not its key), "signature", "schema", "identity",
    "values", "replayed" (an older sequence after a newer one), "changed" (another content for an epoch already accepted),
    "unreadable" (a fault of ours), "clock" (times a day from ours: judged again at each reading, since either clock may be set).
    """

    def __init__(self, run_key: str, verifier: Verifier) -> None:
        self._fields: dict[bytes, str] = {}
        for name in (EPOCHS_FIELD, EVALUATIONS_FIELD):
            self._fields[DHTID.generate(source=f"{run_key}_{name}").to_bytes()] = name
        self._verifier = verifier
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._judged: OrderedDict[bytes, str] = OrderedDict()  # digest: reason, "" if good

    @property
    def keys(self) -> list[bytes]:
        """DHT ids of the keys it judges."""
        return list(self._fields)

    def newest_epoch(self, vm: str) -> int:
        """The last epoch accepted of a VM, 0 if none."""
        seen = self._seen.get((EPOCHS_FIELD, vm))
        return max(seen.rows, default=0) if seen else 0

    def restore(self, name: str, vm: str, epoch: int, row: EpochReport | Evaluation) -> None:
        """Remember what an earlier process of this monitor wrote, so that it is not written twice."""
        self._seen.setdefault((name, vm), _Seen()).rows[epoch] = row

    def offer(
        self, entries: Iterable[Raw], roster: Roster, now_s: float
    ) -> tuple[list[EpochReport | Evaluation], list[Wrong]]:
        """Judge what one scrape brought, from all replicas.

        Of each subkey the entries are tried from the latest expiration down to the first good one; older
        copies behind it are replicas that missed a store, nobody's fault, and are left alone. An entry
        that was judged in an earlier scrape costs nothing.
        """
        new: list[EpochReport | Evaluation] = []
        wrong: list[Wrong] = []
        settled: set[tuple[bytes, bytes]] = set()
        for raw in sorted(entries, key=lambda entry: entry.expiration, reverse=True):
            place = (raw.key, MSGPackSerializer.dumps(raw.subkey))
            if raw.key not in self._fields or place in settled:
                continue
            digest = raw.digest
            if (before := self._judged.get(digest)) is not None:
                self._judged.move_to_end(digest)
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
                    wrong.append(Wrong(reason, vm, str(error)))
            except Exception as error:  # noqa: BLE001 - logged: it must cost no other record
                _log.exception("a record of %s cannot be read", vm or "nobody known")
                reason = "unreadable"
                wrong.append(Wrong(reason, vm, repr(error)))
            self._judged[digest] = reason
            while len(self._judged) > _REMEMBERED:
                self._judged.popitem(last=False)
        return new, wrong

    def roster_changed(self) -> None:
        """Judge again what was refused for its author: a VM may be on the roster now."""
        self._judged = OrderedDict((d, reason) for d, reason in self._judged.items() if reason != "roster")

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
            raise RecordError("replayed", f"{peer.vm}: number {sequence} after {seen.sequence}")
        by_epoch = {(row.epoch.epoch if name == EPOCHS_FIELD else row.epoch): row for row in rows}
        for epoch, row in by_epoch.items():
            if epoch in seen.rows and row != seen.rows[epoch]:
                raise RecordError("changed", f"{peer.vm}: another content for epoch {epoch}")
        fresh = [row for epoch, row in by_epoch.items() if epoch not in seen.rows]
        seen.sequence = sequence
        seen.rows |= by_epoch
        return fresh


def _owner(raw: Raw, roster: Roster) -> RosterPeer:
    """The roster's peer whose subkey this is."""
    if len(raw.value) > MAX_VALUE_BYTES:
        raise RecordError("size", f"{len(raw.value)} bytes, {MAX_VALUE_BYTES} are allowed")
    vm, key = vm_and_key_of(raw.subkey)
    peer = roster.peers.get(vm)
    if peer is None or peer.record_public_key != key:
        raise RecordError("roster", f"{vm} with this key is not on the roster")
    if not math.isfinite(raw.expiration):
        raise RecordError("values", f"{vm}: expires at {raw.expiration}")
    return peer
