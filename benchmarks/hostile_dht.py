"""Hostile DHT entries, as a node would serve them to the monitor and to the other peers.

Signed entries of every VM are made as peers make them. Those of hostile VMs are corrupted before or after signing,
stored under another VM's name, given invalid times, or flooded. The real monitor validates them and writes
monitor.jsonl, and the real readers of the peers read them.
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.timed_storage import ValueWithExpiration

from experiments.monitor.acceptance import raw_entries
from experiments.monitor.main import MonitorConfig, _Monitor
from experiments.peer.swarm.members import declared_peers, parse_members, valid_reports
from experiments.wire.dht_records import (
    EPOCHS_FIELD,
    EVALUATIONS_FIELD,
    MEMBERS_FIELD,
    EpochReport,
    Evaluation,
    encode_epochs,
    encode_evaluations,
    subkey_of,
)
from experiments.wire.hivemind.values import entries_of, is_sound, sound_value
from metrics.records import EgressRecord, EpochRecord, IngressRecord

PEER_ID = "12D3KooWGRUuQZfcDrL1q9qLQCpkW6hQ4gCvQ5FBCZ1gY3iR8dNm"
_FIELDS = (EPOCHS_FIELD, EVALUATIONS_FIELD, MEMBERS_FIELD, "progress", "averagers")
_TTL_S = 300.0
_FLOOD = 3000

Entry = tuple[Any, Any, Any]  # subkey, value with its signature, expiration


@functools.cache
def _key(vm: str) -> RSAPrivateKey:
    """Return a VM's record key, cached because generating one takes 0.1 s."""
    return RSAPrivateKey()


def _public(vm: str) -> str:
    return _key(vm).get_public_key().to_bytes().decode()


class HostileSwarm:
    """The DHT of a run and its monitor. `now_s` returns unix seconds of the run's clock."""

    def __init__(self, run_key: str, folder: Path, random: Random, now_s: Callable[[], float]) -> None:
        self.corruptions = 0
        self.wrong: list[str] = []
        self._run_key, self._random, self._now_s = run_key, random, now_s
        self._folder = folder / "monitor"
        self._monitor = _Monitor(MonitorConfig(run_key, "", 64, 1.0, 10.0), self._folder)
        self._monitor._now_s = now_s
        self._vms: list[str] = []
        self._sequence = 0
        self._ends: dict[str, float] = {}

    def close(self) -> None:
        """Close monitor.jsonl."""
        self._monitor._sink.close()

    def scrape(self, alive: Sequence[str], trained: Sequence[str], hostile: Callable[[str], bool]) -> None:
        """Read all keys once. All `alive` VMs report; those in `trained` also report an epoch and an evaluation."""
        if list(alive) != self._vms:
            self._vms = list(alive)
            self._write_roster()
        self._sequence += 1
        read: list[Any] = []
        for field in _FIELDS:
            honest: list[Entry] = []
            everything: list[Entry] = []
            for vm in alive:
                good = self._entry(field, vm, vm in trained)
                if good is None:
                    continue
                stored = self._corrupt(field, vm, good) if hostile(vm) else [good]
                everything += stored
                honest += [entry for entry in stored if not hostile(vm) or self._is_accepted(field, entry)]
            # One node that validates entries, and one that returns everything.
            for answer in (_answer(honest), _answer(everything)):
                read += raw_entries(self._id(field), answer)
                self._read_as_peers(field, answer)
            self._check_seen(field, _answer(honest), [vm for vm in alive if not hostile(vm)])
        self._monitor._read_roster()
        self._monitor._sink.write(self._monitor._rows(read))

    def _is_accepted(self, field: str, entry: Entry) -> bool:
        """Whether an honest node stores the entry: valid, and signed by the key in its subkey."""
        subkey, value, expiration = entry
        if not isinstance(subkey, bytes) or not is_sound(subkey, value, expiration, self._now_s()):
            return False
        # The schema of the run's own keys requires an owner.
        if field != "averagers" and b"[owner:" not in subkey:
            return False
        record = DHTRecord(self._id(field), MSGPackSerializer.dumps(subkey), value, expiration)
        try:
            return bool(RSASignatureValidator().validate(record))
        except (ValueError, TypeError, UnsupportedAlgorithm):  # an invalid public key
            return False

    def _read_as_peers(self, field: str, answer: Any) -> dict[Any, Any]:
        """Read an answer as peers do; must not raise."""
        now_s = self._now_s()
        sound = sound_value(answer, now_s)
        values: dict[Any, Any] = {}
        for subkey, entry in entries_of(sound):
            values[subkey] = ValueWithExpiration(_loaded(subkey, entry), entry.expiration_time)
        parse_members(values, now_s, self._is_member)
        valid_reports(values, self._is_member)
        declared_peers(values)
        return values

    def _check_seen(self, field: str, answer: Any, honest: Sequence[str]) -> None:
        """Check that peers get the entries of all honest peers from an honest node."""
        values = self._read_as_peers(field, answer)
        if field == MEMBERS_FIELD:
            found = {member.vm for member in parse_members(values, self._now_s(), self._is_member)}
        elif field == "progress":
            reports = valid_reports(values, self._is_member) or {}
            found = {vm for vm in honest if self._owned(vm) in reports}
        else:
            return
        if missed := set(honest) - found:
            self.wrong.append(f"{field}: {sorted(missed)} are missing")

    def _is_member(self, vm: str, key: str, peer_id: str) -> bool:
        return peer_id == PEER_ID and any(key == _public(each) for each in self._vms if not vm or each == vm)

    def _write_roster(self) -> None:
        rows: list[dict[str, Any]] = []
        for vm in self._vms:
            _, slot, generation = vm.rsplit("-", 2)
            rows.append(
                {"vm": vm, "slot": slot, "generation": int(generation), "record_public_key": _public(vm), "maddr": None}
            )  # fmt: skip
        path = self._folder / "roster.json"
        path.with_suffix(".new").write_text(json.dumps({"peers": rows}))
        path.with_suffix(".new").replace(path)

    def _id(self, field: str) -> bytes:
        return DHTID.generate(source=f"{self._run_key}_{field}").to_bytes()

    def _owned(self, vm: str) -> bytes:
        return b"[owner:" + _public(vm).encode() + b"]"

    def _entry(self, field: str, vm: str, trained: bool) -> Entry | None:
        """The entry of an honest peer; None if it has none yet."""
        now_s = self._now_s()
        if field == "averagers":
            return PeerID.from_base58(PEER_ID).to_bytes(), MSGPackSerializer.dumps((0, True)), now_s + 60.0
        value = self._value(field, vm, trained)
        if value is None:
            return None
        subkey = self._owned(vm) if field == "progress" else subkey_of(vm, _public(vm))
        return self._signed(field, vm, subkey, value, now_s + _TTL_S)

    def _value(self, field: str, vm: str, trained: bool) -> Any:
        now_s = self._now_s()
        _, slot, generation = vm.rsplit("-", 2)
        if field == MEMBERS_FIELD:
            return [vm, slot, "training", 1, f"/ip4/10.0.0.1/tcp/31337/p2p/{PEER_ID}"]
        if field == "progress":
            return {
                "peer_id": PeerID.from_base58(PEER_ID).to_bytes(), "epoch": 1, "samples_accumulated": 8,
                "samples_per_second": 3.0, "time": now_s, "client_mode": False,
            }  # fmt: skip
        if not trained:
            return None
        if field == EVALUATIONS_FIELD:
            made = Evaluation(vm, EPOCH, self._ended(vm), 0.9, 0.1, 9)
            return encode_evaluations(slot, int(generation), self._sequence, [made])
        at_s = self._ended(vm)
        epoch = EpochRecord(
            vm, EPOCH, at_s - 9, at_s, 3, 30, 1.0, 0.0, 1.0, 2.0, 0.1, 4.0, 0.0, 5.0, 4.0, 2.3, 2, "", "d"
        )
        report = EpochReport(
            epoch, (EgressRecord(vm, EPOCH, "10.0.0.2", "comm", 4.0, 1000),), IngressRecord(vm, EPOCH, 5, 0)
        )
        return encode_epochs(slot, int(generation), self._sequence, [report])

    def _ended(self, vm: str) -> float:
        return self._ends.setdefault(vm, self._now_s())

    def _signed(self, field: str, vm: str, subkey: Any, value: Any, expiration: Any) -> Entry:
        packed = value if isinstance(value, bytes) else MSGPackSerializer.dumps(value)
        record = DHTRecord(self._id(field), MSGPackSerializer.dumps(subkey), packed, expiration)
        return subkey, RSASignatureValidator(_key(vm)).sign_value(record), expiration

    def _corrupt(self, field: str, vm: str, entry: Entry) -> list[Entry]:
        """Replace a VM's entry by corrupted ones."""
        random = self._random
        self.corruptions += 1
        subkey, value, expiration = entry
        others = [each for each in self._vms if each != vm]
        victim = random.choice(others or [vm])
        match random.choices(range(8), weights=(3, 3, 3, 3, 3, 0.5, 3, 3))[0]:
            case 0:  # a signed but invalid value
                return [self._signed(field, vm, subkey, self._distorted(field, vm), expiration)]
            case 1:  # bytes changed after signing
                return [(subkey, self._bytes(value), expiration)]
            case 2:  # under another VM's name, signed with its own key
                theirs = self._owned(victim) if field == "progress" else subkey_of(victim, _public(victim))
                made = self._value(field, victim, trained=True)
                return [
                    self._signed(
                        field, vm, theirs + (b"" if theirs != subkey else b"x"), made, expiration + 9
                    )
                ]
            case 3:  # invalid times
                times = (
                    math.nan,
                    math.inf,
                    -math.inf,
                    0,
                    -1.0,
                    1e300,
                    2**63,
                    None,
                    "soon",
                    expiration + 86_400.0 * 90,
                )
                return [(subkey, value, random.choice(times))]
            case 4:  # values that no node should store
                values = (
                    None,
                    3,
                    "text",
                    [],
                    b"",
                    b"\xc1",
                    b"\xdf\xff\xff\xff\xff",
                    b"\x91" * 2000,
                    b"x" * 70_000,
                    EVIL[0],
                )
                return [(subkey, random.choice(values), expiration)]
            case 5:  # a flood of made-up names
                return [entry, *((b"flood-%d" % n, b"\xc0", expiration) for n in range(_FLOOD))]
            case 6:  # invalid subkeys
                keys = (None, 7, "text", b"", b"[owner:", b"\xff" * 2000, 1.5, self._bytes(bytes(subkey)))
                return [(random.choice(keys), value, expiration)]
            case _:  # an earlier entry, replayed
                self._sequence -= random.randint(1, 3)
                again = self._entry(field, vm, trained=True)
                self._sequence += 3
                return [again] if again is not None else [entry]

    def _distorted(self, field: str, vm: str) -> Any:
        """Replace fields of a valid value, at any depth."""
        random = self._random
        value = copy.deepcopy(self._value(field, vm, trained=True))
        for _ in range(random.randint(1, 4)):
            place = value
            while isinstance(place, list | dict) and place:
                names = list(place) if isinstance(place, dict) else list(range(len(place)))
                name = random.choice(names)
                if not isinstance(place[name], list | dict) or random.random() < 0.3:
                    place[name] = copy.deepcopy(random.choice(EVIL))
                    break
                place = place[name]
        return value if random.random() > 0.1 else random.choice(EVIL)

    def _bytes(self, content: bytes) -> bytes:
        random = self._random
        data = bytearray(content)
        for _ in range(random.randint(1, 4)):
            at = random.randint(0, len(data))
            if random.random() < 0.5:
                data[at : at + 1] = random.randbytes(1)
            else:
                data[at : at + random.randint(0, 30)] = random.randbytes(random.randint(0, 30))
        return bytes(data)


EPOCH = 3
EVIL: Sequence[Any] = (
    None, True, False, 0, -1, 2**62, 2**63, 1e18, 1e308, float("nan"), float("inf"), "", "x", "alone", "\x1b[31mred\x1b[0m",
    "\x00", "\u202eabc", [], {}, [[]], {"a": {"b": [1, "x"]}}, "y" * 5000, b"\xff\xfe", ["a"] * 50, [float("nan")] * 7,
    "/ip4/1.2.3.4/tcp/1/p2p/alone", "/ip4/10.0.0.1/tcp/1/p2p/" + "0" * 46,
)  # fmt: skip


def _answer(entries: Sequence[Entry]) -> Any:
    made: Any = DictionaryDHTValue()
    with made.freeze():
        for subkey, value, expiration in entries:
            made.data[subkey] = ValueWithExpiration(value, expiration)
    return made


def _loaded(subkey: Any, entry: Any) -> Any:
    """Deserialize a value as Hivemind does for a peer, without its signature."""
    record = DHTRecord(b"", MSGPackSerializer.dumps(subkey), entry.value, 0.0)
    return MSGPackSerializer.loads(RSASignatureValidator().strip_value(record))
