"""Bytes outside epochs: everything the meter counted is recorded exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud.storage.counter import BytesRead
from experiments.peer.reporting.final_egress import FinalEgress
from experiments.peer.training.epoch_accounting import EpochLedger
from metrics.records import PHASES, StepRecord
from orchestrator.controller.finish import read_egress

VM = "r-a-0"


class Meter:
    """A meter with given readings."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}

    def send(self, address: str, count: int) -> None:
        self.sent[address] = self.sent.get(address, 0) + count

    def snapshot(self) -> dict[str, int]:
        return dict(self.sent)


def step() -> StepRecord:
    return StepRecord(VM, 1, 0, 100.0, 2.0, **dict.fromkeys((f"{p}_s" for p in PHASES), 0.0), samples=32)


def test_every_byte_is_in_exactly_one_phase(tmp_path: Path) -> None:
    meter, now, read = Meter(), [0.0], [BytesRead(50, 0, 0)]
    final = FinalEgress(VM, tmp_path / "egress.csv", meter.snapshot, lambda: now[0])
    meter.send("10.0.0.9", 7)  # before the first epoch: the held-out split's requests
    ledger = EpochLedger(VM, meter.snapshot, lambda: read[0], "digits", 4.0)
    reported = []
    for epoch in (1, 2):
        ledger.begin(100.0)
        ledger.losses.append(1.0)
        ledger.add(step())
        meter.send("10.0.0.2", 100)
        ledger.round_begins()
        meter.send("10.0.0.2", 1000)
        ledger.round_ends()
        meter.send("10.0.0.8", 3)  # published between this epoch and the next
        read[0] = BytesRead(50 + 10 * epoch, 0, 0)
        _, egress, ingress = ledger.end(epoch, 2)
        final.published(epoch, egress)
        reported += [*egress]
        assert ingress.network_bytes == (60 if epoch == 1 else 10)  # nothing read is left out either
    now[0] = 6.0
    meter.send("10.0.0.2", 20)  # the goodbye
    final.write()
    left = list(read_egress(tmp_path / "egress.csv", VM))
    assert [(r.epoch, r.dst_address, r.phase, r.seconds, r.bytes) for r in left] == [
        (2, "10.0.0.2", "leaving", 6.0, 20),
        (2, "10.0.0.8", "leaving", 6.0, 3),
    ]
    assert [(r.epoch, r.seconds, r.bytes) for r in reported if r.phase == "joining"] == [(1, 4.0, 7)]
    sums: dict[str, int] = {}
    for row in (*reported, *left):
        sums[row.dst_address] = sums.get(row.dst_address, 0) + row.bytes
    assert sums == meter.sent


def test_bytes_before_the_first_epoch_are_joining(tmp_path: Path) -> None:
    final = FinalEgress(VM, tmp_path / "egress.csv", lambda: {"10.0.0.2": 5}, lambda: 1.0)
    final.write()
    final.write()  # again, as at the very end
    assert [(r.epoch, r.phase, r.bytes) for r in read_egress(tmp_path / "egress.csv", VM)] == [
        (0, "joining", 5)
    ]


def test_a_file_that_claims_an_epoch_s_phase_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "egress.csv"
    path.write_text("vm,epoch,dst_address,phase,seconds,bytes\nr-a-0,1,10.0.0.2,comm,1.0,5\n")
    with pytest.raises(ValueError, match="comm"):
        read_egress(path, VM)
