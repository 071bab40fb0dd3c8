"""Seconds, samples and bytes of an overlapped round in the epoch's records."""

from __future__ import annotations

import pytest

from cloud.storage.counter import BytesRead
from experiments.peer.training.epoch_accounting import EpochLedger
from metrics.records import PHASES, StepRecord


def step(sync_s: float = 0.0, local_s: float = 0.0, samples: int = 8) -> StepRecord:
    """A step with one second of calculation and the given optimizer time."""
    seconds = dict.fromkeys((f"{name}_s" for name in PHASES), 0.0)
    seconds |= {"forward_s": 1.0, "optimizer_sync_s": sync_s, "optimizer_local_s": local_s}
    return StepRecord(
        vm="a", step=1, epoch=0, began_s=0.0, wall_s=1.0 + sync_s + local_s, samples=samples, **seconds
    )


class Meter:
    """A meter that always counts a thousand bytes per second."""

    sent = 0

    def __call__(self) -> dict[str, int]:
        return {"10.0.0.2": self.sent}


def ledger_of(meter: Meter) -> EpochLedger:
    ledger = EpochLedger("a", meter, lambda: BytesRead(0, 0, 0), "digits", 0.0)
    ledger.begin(100.0)
    return ledger


def epoch_of(ledger: EpochLedger, meter: Meter, outside: int, inside: int, number: int):
    """`outside` steps, a round begun in the last of them, `inside` steps behind it; the last one takes 0.5 s for it."""
    for k in range(outside):
        meter.sent += 1000
        if k == outside - 1:
            ledger.round_begins()
        ledger.losses.append(2.0)
        ledger.add(step(sync_s=0.1 if k == outside - 1 else 0.0))
    for k in range(inside):
        meter.sent += 5000
        ledger.losses.append(2.0)
        if k == inside - 1:
            ledger.round_ends()
        ledger.add(step(sync_s=0.5 if k == inside - 1 else 0.0))
    ledger.add_hidden(inside - 0.2, inside * 8)
    return ledger.end(number, 2)


def test_seconds_add_up_and_samples_are_the_rounds() -> None:
    meter = Meter()
    ledger = ledger_of(meter)
    first, *_ = epoch_of(ledger, meter, 6, 3, 1)
    ledger.begin(first.ended_s)
    second, egress, _ = epoch_of(ledger, meter, 3, 3, 2)
    for record, steps in ((first, 9), (second, 6)):
        assert record.ended_s - record.began_s == pytest.approx(steps + 0.6)
        assert sum(getattr(record, f"{name}_s") for name in PHASES) == pytest.approx(steps + 0.6)
        assert record.calc_s == pytest.approx(steps)
        assert record.comm_s == pytest.approx(0.6 + 2.8)
        assert record.overlapped_s == pytest.approx(2.8)
    assert (first.samples, second.samples) == (48, 48)  # those after the round began are the next epoch's
    assert (first.steps, second.steps) == (9, 6)
    found = {row.phase: (row.seconds, row.bytes) for row in egress}
    assert found["comm"] == (pytest.approx(3.4), 15_000)
    assert sum(seconds for seconds, _ in found.values()) == pytest.approx(second.calc_s + 0.6)
    assert sum(count for _, count in found.values()) == 18_000


def test_no_control_traffic_between_consecutive_rounds() -> None:
    meter = Meter()
    ledger = ledger_of(meter)
    first, *_ = epoch_of(ledger, meter, 6, 5, 1)
    ledger.begin(first.ended_s)
    _, egress, _ = epoch_of(ledger, meter, 1, 5, 2)
    assert "calc" not in {row.phase for row in egress}
    assert {row.phase: row.bytes for row in egress}["settling"] == 1000


def test_samples_of_dropped_gradients_do_not_count() -> None:
    meter = Meter()
    ledger = ledger_of(meter)
    for _ in range(4):
        ledger.losses.append(2.0)
        ledger.add(step())
    ledger.discard_samples()
    ledger.losses.append(2.0)
    ledger.add(step(samples=0))
    ledger.add_hidden(1.0, 0)
    record, *_ = ledger.end(1, 0)
    assert record.samples == 0
