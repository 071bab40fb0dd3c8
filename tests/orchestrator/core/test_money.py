"""Limits in dollars, seconds and VMs: what the core does not request, and when it stops."""

import json
from dataclasses import asdict, replace
from decimal import Decimal

import pytest

from metrics.records import EventRecord
from orchestrator.core.events import Requested, RequestVm, Spending, TerminateVm
from orchestrator.core.journal import begin, created, replay
from orchestrator.core.limits import unaffordable
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from tests.orchestrator.core_driver import Driver, rows

IOWA = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("1.00"), "book")
DEAR = Place("gcp/us-east1/us-east1-b", "n1", "T4:1", True, Decimal("3.00"), "book")
UNKNOWN = replace(DEAR, usd_per_h=None, price_source="nobody knows")
CAPPED = replace(UNKNOWN, max_usd_per_h=Decimal("2.00"))


def spec(count: int = 2, places=(IOWA,), policy="next_place", **more) -> RunSpec:
    names = "abcdefgh"
    slots = tuple(
        SlotSpec(names[n], places, Policy(policy, 99, 99, backoff_s=1.0, backoff_max_s=4.0))
        for n in range(count)
    )
    return RunSpec("r", slots, **more)


def asked(made) -> list[str]:
    return [i.vm for i in made if isinstance(i, RequestVm)]


def test_vms_per_min_holds_across_a_restart():
    run = Driver(spec(8, vms_per_min=3))
    run.tick()
    run.sees("r-a-0", phase="training", maddr="/a")
    assert asked(run.tick()) == ["r-b-0", "r-c-0"]
    assert run.state.held_back == "limits.vms_per_min: 3 VMs were requested within a minute"
    for vm in ("r-b-0", "r-c-0"):
        run.feed(Requested(run.now_s, vm))
    run.state = replay(rows(run))
    assert asked(run.tick(50)) == []
    assert asked(run.tick(9)) == ["r-d-0"]  # the first request is a minute old
    assert asked(run.tick(1)) == ["r-d-0", "r-e-0", "r-f-0"]


def test_replacements_per_h_holds():
    run = Driver(spec(2, replacements_per_h=2)).train()
    for generation in range(2):
        run.sees(f"r-a-{generation}", state="preempted")
        assert asked(run.tick(10)) == [f"r-a-{generation + 1}"]
        run.sees(f"r-a-{generation + 1}", phase="training", maddr="/a")
    run.sees("r-a-2", state="preempted")
    assert asked(run.tick(10)) == []
    run.state = replay(rows(run))
    assert run.state.held_back.startswith("limits.replacements_per_h: 2 lost VMs")
    assert asked(run.tick(3500)) == []
    assert asked(run.tick(100)) == ["r-a-3"]
    assert run.state.held_back == ""
    assert run.facts[-2].cause == "VMs are requested again"


def test_no_request_exceeds_max_usd_per_h():
    run = Driver(spec(3, places=(DEAR, IOWA), max_usd_per_h=Decimal("4.50")))
    run.tick()
    run.sees("r-a-0", phase="training", maddr="/a")
    assert asked(run.tick()) == ["r-b-0"]
    assert run.of("b").place == 1  # the dear one does not fit any more
    assert run.of("b").cause == (
        "us-east1-b at $3.00/h would pass max_usd_per_h 4.50 (3.00 USD an hour are rented); "
        "trying us-central1-a at $1.00/h"
    )
    assert run.of("c").state is SlotState.WAITING
    assert "us-central1-a at $1.00/h would pass max_usd_per_h 4.50 (4.00" in run.of("c").cause
    run.sees("r-a-0", state="preempted")
    assert asked(run.tick(30))  # there is room again
    assert not run.state.stop_status


def test_a_run_above_max_usd_per_h_stops():
    run = Driver(spec(2, max_usd_per_h=Decimal(3))).train()
    run.feed(Spending(run.now_s, Decimal(1), Decimal("2.99")))
    assert not run.state.stop_status
    run.feed(Spending(run.now_s, Decimal(1), Decimal("3.01")))
    assert (run.state.stop_status, run.state.stop_cause) == (
        "budget",
        "3.01 USD an hour are rented, more than max_usd_per_h 3",
    )


def test_a_new_vms_first_minutes_must_fit_the_budget():
    paid = {"metering_period_s": 0.0, "decision_s": 0.0, "teardown_s": 36.0, "first_s": 3600.0}
    run = Driver(spec(2, budget_usd=Decimal(5), **paid)).train()
    run.feed(Spending(run.now_s, Decimal("3.90"), Decimal(2)))
    run.sees("r-a-0", state="preempted")
    assert asked(run.tick(10)) == ["r-a-1"]
    run.feed(Spending(run.now_s, Decimal("4.00"), Decimal(1)))
    run.sees("r-a-1", state="preempted")
    assert asked(run.tick(10)) == []
    assert "a VM's first 3600 s at $1.00/h reach the budget of 5 USD" in run.of("a").cause
    assert not run.state.stop_status  # b goes on with what is left
    run.sees("r-b-0", state="preempted")
    run.tick(10)
    assert run.state.stop_status == "budget"


def test_an_unaffordable_slot_does_not_end_a_run_that_others_can_continue():
    dear, cheap = spec(1, places=(DEAR,)).slots[0], replace(spec(1).slots[0], name="b")
    run = Driver(RunSpec("r", (dear, cheap), max_usd_per_h=Decimal(2)))
    assert asked(run.tick()) == ["r-b-0"]
    run.sees("r-b-0", state="preempted")
    assert asked(run.tick(0.5)) == []  # b waits a second, a is too dear: nobody has a VM
    run.tick(0.2)
    assert not run.state.stop_status
    assert asked(run.tick(5)) == ["r-b-1"]
    assert "would pass max_usd_per_h 2" in run.of("a").cause


def test_traffic_in_flight_is_reserved_at_its_ceiling():
    def stopped(spent: str, ceiling: str, told: str) -> bool:
        run = Driver(
            spec(2, budget_usd=Decimal(5), egress_usd_per_h=Decimal(ceiling), teardown_s=345.0)
        ).train()
        run.feed(Spending(run.now_s, Decimal(spent), Decimal(2), Decimal(told)))
        return bool(run.state.stop_status)

    # 360 s: a tenth of an hour
    assert not stopped("4.79", "0", "0")
    assert stopped("4.80", "0", "0")
    assert not stopped("4.29", "5", "0")
    assert stopped("4.30", "5", "0")
    assert stopped("4.30", "1", "5")


def test_vms_requested_since_the_last_bill_are_counted():
    run = Driver(spec(2, budget_usd=Decimal(5), teardown_s=3585.0)).train()
    run.feed(Spending(run.now_s, Decimal("2.99"), Decimal(0)))  # the bill knows of neither
    assert not run.state.stop_status
    run.feed(Spending(run.now_s, Decimal("3.00"), Decimal(0)))
    assert run.state.stop_status == "budget"
    assert {type(i) for i in run.tick()} == {TerminateVm}


def test_an_unknown_price_counts_at_its_ceiling_or_nothing_is_requested():
    run = Driver(spec(1, places=(UNKNOWN,), budget_usd=Decimal(5)))
    run.tick()
    assert (run.state.stop_status, run.state.intents) == ("budget", frozenset())
    run = Driver(spec(1, places=(CAPPED,), budget_usd=Decimal(5)))
    assert asked(run.tick()) == ["r-a-0"]
    limited = begin(spec(1, places=(UNKNOWN,), max_usd_per_h=Decimal(5)))
    assert "a price is unknown" in unaffordable(limited, Decimal(0), UNKNOWN)
    assert unaffordable(limited, Decimal("3"), CAPPED) == ""
    assert "would pass" in unaffordable(limited, Decimal("3.01"), CAPPED)


def test_the_run_stops_at_max_wall_time():
    run = Driver(spec(2, max_wall_s=500.0)).train()
    run.now_s = 499.0
    run.tick(0.5)
    assert not run.state.stop_status
    run.tick(0.5)
    assert run.state.stop_status == "budget"
    assert "max_wall_time_s" in run.state.stop_cause


@pytest.mark.parametrize(
    "gone", ["max_wall_s", "min_peers", "breaker_open_s", "egress_usd_per_h", "max_usd_per_h"]
)
def test_journals_of_earlier_and_later_versions_are_read(gone):
    fact = created(spec(1, max_wall_s=500.0))
    data = json.loads(fact.data_json)
    del data[gone]
    data |= {"reserve_s": 30.0, "a_later_versions": [1]}
    data["slots"][0]["policy"]["mood"] = "calm"
    del data["slots"][0]["places"][0]["max_usd_per_h"]
    first = EventRecord(0, 7.0, "run_created", "", -1, "", "", "", "launched", json.dumps(data))
    slot = {k: v for k, v in asdict(begin(spec(1)).slots[0]).items() if k != "notice_at_s"}
    slot |= {"state": "PROVISIONING", "vm": "r-a-0", "since_s": 8.0, "later": 1}
    row = EventRecord(1, 8.0, "intent", "a", 0, "r-a-0", "WAITING", "PROVISIONING", "", json.dumps(slot))
    run = EventRecord(
        2, 8.0, "run", "", -1, "", "running", "running", "", '{"monitor": "wanted", "later": 2}'
    )
    state = replay([first, row, run])
    assert getattr(state.spec, gone) == getattr(spec(1), gone)
    assert (state.monitor, state.launched_s, state.requested_s) == ("wanted", 7.0, (8.0,))
    assert state.slot("a").vm == "r-a-0"


def test_max_wall_time_applies_to_a_late_tick():
    run = Driver(spec(2, max_wall_s=500.0)).train()
    run.tick(1234.5)
    assert run.state.stop_status == "budget"


def test_a_vm_that_would_exactly_reach_the_budget_is_not_requested():
    paid = {"metering_period_s": 0.0, "decision_s": 0.0, "teardown_s": 0.0, "first_s": 3600.0}
    state = replace(
        begin(spec(1, budget_usd=Decimal(5), egress_usd_per_h=Decimal(0), **paid)),
        burn_usd_per_h=Decimal(0),
        egress_usd_per_h=Decimal(0),
    )
    assert "reach the budget of 5" in unaffordable(replace(state, spent_usd=Decimal(4)), Decimal(0), IOWA)
    assert unaffordable(replace(state, spent_usd=Decimal("3.99")), Decimal(0), IOWA) == ""
