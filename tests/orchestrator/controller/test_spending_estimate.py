"""Unreported traffic of lost VMs counts as spent, as an estimate."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from metrics.cost.ledger import CostLine
from metrics.store.database import RunStore
from orchestrator.controller.spending import spent_of
from orchestrator.controller.view import bill_of, snapshot_of
from orchestrator.core.journal import begin
from orchestrator.core.state import RunSpec
from tests.analysis.made_up_run import write_run

NOW_S = 1_700_000_500.0
STATE = begin(RunSpec("geo", (), metering_period_s=30.0, decision_s=6.0, teardown_s=324.0))


def usd(lines: list[CostLine]) -> float:
    return float(sum((line.usd or Decimal(0) for line in lines), Decimal(0)))


def test_unreported_traffic_of_a_lost_vm_is_spent(tmp_path: Path):
    """The made-up run's last VM was preempted 20 s into an epoch of 30 s: two thirds of what it sends in one."""
    write_run(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("epochs", 9)  # more were to come
        bill, told = bill_of(store, NOW_S), spent_of(store, NOW_S, STATE)
        lost = store.records("vms")[-1]
        mine = [line for line in bill.lines if line.src == lost.vm and line.kind == "egress"]
        gone = usd([line for line in mine if line.estimated])
        assert lost.end_cause == "preempted"
        assert gone > 0
        assert gone == pytest.approx(
            usd([line for line in mine if not line.estimated]) / 5 * 20 / 30, rel=0.01
        )
        assert told.spent_usd == bill.sum()
        parts = float(bill.measured.sum() or 0), float(bill.estimated_usd or 0)
        assert float(told.spent_usd or 0) == pytest.approx(sum(parts))
        assert parts[1] >= gone
        shown = snapshot_of(store, NOW_S, True)["cost"]
        assert float(shown["estimated_usd"]) == pytest.approx(parts[1])
        # The rate of the dearest epoch is that of what was measured.
        without = told.egress_usd_per_h
        store.set_meta("epochs", 4)  # warm-up included it had sent all that it was to send
        assert (bill_of(store, NOW_S).estimated_usd, spent_of(store, NOW_S, STATE).egress_usd_per_h) == (
            0,
            without,
        )
