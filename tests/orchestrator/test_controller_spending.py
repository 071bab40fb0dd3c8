"""What the budget guard is told, by hand from a made-up run's rows."""

import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from made_up_run import write_run

from metrics.store import RunStore
from orchestrator.controller.spending import spent_of
from orchestrator.controller.view import bill_of
from orchestrator.core.state import RunSpec

NOW_S = 1_700_000_500.0
SPEC = RunSpec("geo", (), metering_period_s=30.0, decision_s=6.0, teardown_s=324.0)  # a tenth of an hour


@pytest.fixture
def store(tmp_path):
    write_run(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        yield store


def test_the_rates_are_those_of_the_vms_rented_now_and_of_the_dearest_epoch(store):
    first, second = store.records("vms")[:2]
    for row in store.records("vms"):
        store.upsert_vm(replace(row, ended_s=row.requested_s + 10.0))
    store.upsert_vm(replace(first, ended_s=None, usd_per_h=Decimal("0.21")))
    store.upsert_vm(replace(second, ended_s=None, usd_per_h=Decimal("0.18")))
    told = spent_of(store, NOW_S, SPEC)
    bill = bill_of(store, NOW_S)
    assert told.spent_usd == bill.sum() != 0
    assert told.usd_per_h == Decimal("0.39")
    sent: dict[int, int] = {}
    for row in store.records("egress"):
        sent[row.epoch] = sent.get(row.epoch, 0) + row.bytes
    ends = [max(e.ended_s for e in store.records("epochs") if e.epoch == n) for n in range(1, 6)]
    plan = store.meta("emulation", {})
    stretch = plan["study_epoch_s"] / plan["epoch_s"] if plan else 1.0
    epoch_s = stretch * (ends[-1] - ends[0]) / 4
    traffic = bill.sum("egress") + bill.sum("data")
    dearest = traffic * max(sent.values()) / sum(sent.values())
    in_flight = dearest * (1 + Decimal("360") / Decimal(str(epoch_s)))
    assert told.egress_usd_per_h == pytest.approx(in_flight * 10, rel=Decimal("0.01"))


def test_where_no_epoch_was_expected_those_that_ended_count(store):
    """Rented VMs with accelerators that nobody measured: nothing is scaled there."""
    store.set_meta("emulation", {"study_epoch_s": None, "epoch_s": None})
    told = spent_of(store, NOW_S, SPEC)
    store.set_meta("emulation", {"study_epoch_s": 12.0, "epoch_s": 12.0})
    assert told == spent_of(store, NOW_S, SPEC)
    assert told.egress_usd_per_h is not None
    assert told.egress_usd_per_h > 0


def test_what_is_unknown_is_told_as_unknown(store):
    row = store.records("vms")[0]
    store.upsert_vm(replace(row, ended_s=None, usd_per_h=None))
    told = spent_of(store, NOW_S, SPEC)
    assert (told.spent_usd, told.usd_per_h) == (None, None)


def test_before_the_first_epoch_no_traffic_is_known(tmp_path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        told = spent_of(store, NOW_S, SPEC)
    assert (told.spent_usd, told.usd_per_h, told.egress_usd_per_h) == (0, 0, 0)
