"""The simulated cloud's faults, each on demand, and its market: prices, capacity, notices, billing."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.provider import AmbiguousError, LaunchRequest, NoCapacityError, Offer, TransientError
from cloud.sim import FAULTS, Faults, SimCloud, SimPlace, SimWorld, TraceEvent, VirtualClock, Window

A, B = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"


class Rented:
    """A world with one run in it."""

    def __init__(self, *trace: TraceEvent, **place) -> None:
        self.clock = VirtualClock(1000.0)
        places = (SimPlace(A, spot_usd_per_h=Decimal("0.36"), **place), SimPlace(B))
        self.world = SimWorld(places, began_s=1000.0)
        self.world.schedule(trace)
        self.faults = Faults()
        self.cloud = SimCloud(Path("run"), self.world, self.clock, self.faults)

    def rent(self, vm: str = "run-a-0", location: str = A, **more) -> None:
        offer = Offer(location, "sim-8", "T4:1", True, None, "")
        self.cloud.request(LaunchRequest(vm, offer, "p", {}, labels={"orch-owner": "me"}, **more))

    def later(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_s + seconds)

    def states(self) -> dict[str, str]:
        return {o.vm: o.state for o in self.cloud.observe()}

    def alive(self) -> list[str]:
        return [vm.vm for vm in self.world.alive("run")]


@pytest.mark.parametrize(
    ("fault", "error", "there"),
    [
        ("lost_reply", AmbiguousError, True),
        ("lost_request", AmbiguousError, False),
        ("created_but_error", TransientError, True),
        ("created_but_refused", NoCapacityError, True),
        ("transient", TransientError, False),
        ("outage", TransientError, False),
    ],
)
def test_a_request_that_goes_wrong(fault, error, there):
    run = Rented()
    run.faults.demand(fault)
    with pytest.raises(error):
        run.rent()
    assert bool(run.alive()) is there
    assert run.faults.counts[fault] == 1
    run.rent()  # asking again is safe
    assert run.alive() == ["run-a-0"]


def test_a_slow_answer_comes_after_every_deadline():
    run = Rented()
    run.faults.demand("slow_reply")
    reply = run.cloud.begin("terminate", "nobody")
    assert reply.at_s - run.clock.now_s >= 3600


def test_a_hidden_vm_is_billed_and_in_no_list():
    run = Rented()
    run.faults.demand("hidden", size_s=600.0)
    run.rent()
    assert run.states() == {}
    assert run.cloud.list_ours("me") == []
    assert run.alive() == ["run-a-0"]
    run.later(600)
    assert run.states() == {"run-a-0": "running"}


def test_vm_that_ignores_termination_ends_eventually():
    run = Rented()
    run.rent()
    for _ in range(50):
        run.faults.demand("undead", size_s=300.0)
        run.cloud.terminate("run-a-0")
        assert run.states() == {"run-a-0": "running"}
        if run.world.vms["run", "run-a-0"].ending:
            break
    run.later(300)
    assert run.states() == {"run-a-0": "terminated"}


def test_stale_and_duplicate_lists():
    run = Rented()
    assert run.states() == {}
    run.rent()
    run.faults.demand("stale")
    assert run.states() == {}
    run.faults.demand("duplicate")
    assert [o.vm for o in run.cloud.observe()] == ["run-a-0", "run-a-0"]


def test_the_providers_clock_may_be_wrong():
    run = Rented()
    run.faults.demand("skew", size_s=-120.0)
    run.rent()
    (seen,) = run.cloud.observe()
    assert seen.requested_at_s == pytest.approx(880.0)


def test_faults_by_chance_come_within_their_windows_and_are_counted():
    faults = Faults([Window("transient", 10.0, 20.0, 0.5)], seed=1)
    struck = [
        at for at in range(1000) for _ in range(20) if faults.strike("transient", float(at)) is not None
    ]
    assert set(struck) == set(range(10, 20))
    assert 60 < len(struck) < 140
    assert faults.counts["transient"] == len(struck)
    assert faults.any_until(15.0) == 20.0
    assert faults.any_until(20.0) == 20.0
    assert len(FAULTS) == 21


def test_billing_follows_the_price_to_the_second():
    run = Rented(TraceEvent(1800.0, A, "price", Decimal("0.72")), boot_s=(60.0, 60.0))
    run.rent()
    run.later(3600 - 60)
    run.world.advance_to(run.clock.now_s)
    spent, burn = run.world.meter.spent("run", 1000.0 + 3600.0)
    assert burn == Decimal("0.72")
    assert spent == Decimal("0.36") / 2 + Decimal("0.72") / 2
    run.world.advance_to(1000.0 + 3600.0)
    run.cloud.begin("terminate", "run-a-0")
    assert run.world.meter.spent("run", 10000.0) == (spent, Decimal(0))
    assert run.world.meter.vm_hours("run", 10000.0) == 1.0


def test_a_price_above_the_ceiling_takes_the_vm_and_refuses_the_next():
    run = Rented(TraceEvent(600.0, A, "price", Decimal("0.41")))
    run.rent(max_usd_per_h=Decimal("0.40"))
    run.later(600)
    assert run.states() == {"run-a-0": "preempted"}
    with pytest.raises(NoCapacityError, match="above the ceiling"):
        run.rent("run-a-1", max_usd_per_h=Decimal("0.40"))
    run.rent("run-a-2")


def test_capacity_preemptions_and_refusals_of_a_trace():
    run = Rented(
        TraceEvent(600.0, A, "preempt", Decimal(1)),
        TraceEvent(900.0, A, "refuse", Decimal(1)),
        TraceEvent(1200.0, "*", "capacity", Decimal(0)),
        TraceEvent(1800.0, "*", "capacity", Decimal("Infinity")),
        TraceEvent(1800.0, A, "refuse", Decimal(0)),
    )
    for n, location in enumerate((A, A, A, B)):
        run.rent(f"run-{n}-0", location)
    run.clock.advance_to(1700.0)
    assert sorted(run.states().values()) == ["preempted", "running", "running", "running"]
    run.clock.advance_to(1950.0)
    with pytest.raises(NoCapacityError):
        run.rent("run-4-0")
    run.clock.advance_to(2300.0)
    assert set(run.states().values()) == {"preempted"}
    run.clock.advance_to(2900.0)
    run.rent("run-5-0")
    assert run.alive() == ["run-5-0"]
    assert run.world.counts["storm"] == 1
    assert run.world.counts["capacity"] == 3


def test_preemptions_come_at_their_rate_with_their_notice():
    run = Rented(preempt_per_h=1.0, notice_s=120.0)
    for n in range(200):
        run.cloud.begin(
            "request", LaunchRequest(f"run-{n}-0", Offer(A, "s", "T4:1", True, None, ""), "p", {})
        )
    noticed: dict[str, float] = {}
    run.world.on_change = lambda change, vm, at_s: (
        noticed.setdefault(vm.vm, at_s) if change == "noticed" else None
    )
    run.world.advance_to(1000.0 + 3600.0)
    gone = [vm for vm in run.world.vms.values() if vm.state == "preempted"]
    assert 100 < len(gone) < 155  # 1 - 1/e of 200 are 126
    assert all(vm.ended_s - noticed[vm.vm] == pytest.approx(120.0) for vm in gone)


def test_maximum_lifetime_ends_a_forgotten_vm():
    run = Rented()
    run.rent(max_life_s=5000.0)
    run.later(5000)
    assert run.states() == {"run-a-0": "terminated"}
    assert run.world.next_s() == math.inf
