"""Signed entries as a DHT node serves them, for tests of what the monitor believes."""

from __future__ import annotations

from dataclasses import replace

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey

from experiments.monitor.acceptance import Raw
from experiments.monitor.roster import RosterPeer
from experiments.wire.dht_records import EPOCHS_FIELD, EpochReport, encode_epochs, subkey_of
from metrics.records import EgressRecord, EpochRecord, IngressRecord

NOW_S = 1_790_000_000.0
RUN_KEY = "run"


class Peer:
    """A VM with its key; `entry` signs whatever it is told to."""

    def __init__(self, name="a", generation=0):
        self.key = RSAPrivateKey()
        self.vm = f"run-{name}-{generation}"
        public = self.key.get_public_key().to_bytes().decode()
        self.on_roster = RosterPeer(self.vm, name, generation, public, None)
        self.subkey = subkey_of(self.vm, public)

    def reports(self, *epochs):
        return [
            EpochReport(epoch_record(self.vm, e), (egress(self.vm, e),), ingress(self.vm, e)) for e in epochs
        ]

    def value(self, sequence, *epochs):
        return encode_epochs(self.on_roster.slot, self.on_roster.generation, sequence, self.reports(*epochs))

    def entry(self, value, expiration=NOW_S + 300, subkey=None, field=EPOCHS_FIELD, sign=True):
        subkey = self.subkey if subkey is None else subkey
        key = DHTID.generate(source=f"{RUN_KEY}_{field}").to_bytes()
        packed = value if isinstance(value, bytes) else MSGPackSerializer.dumps(value)
        record = DHTRecord(key, MSGPackSerializer.dumps(subkey), packed, expiration)
        if sign:
            packed = RSASignatureValidator(self.key).sign_value(record)
        return Raw(key, subkey, packed, expiration)

    def good(self, sequence, *epochs, **more):
        return self.entry(self.value(sequence, *epochs), **more)


def epoch_record(vm, epoch, **more):
    base = EpochRecord(
        vm=vm, epoch=epoch, began_s=NOW_S - 10, ended_s=NOW_S, steps=4, samples=64, load_s=0.5, move_s=0.1,
        forward_s=3.0, backward_s=4.0, optimizer_local_s=0.1, optimizer_sync_s=2.0, other_s=0.3, calc_s=8.0,
        comm_s=2.0, loss=2.3, group_size=2, dropped="", ran="digits",
    )  # fmt: skip
    return replace(base, **more)


def egress(vm, epoch):
    return EgressRecord(vm, epoch, "10.0.0.2", "comm", 2.0, 1000 * epoch)


def ingress(vm, epoch):
    return IngressRecord(vm, epoch, 5000, 0)
