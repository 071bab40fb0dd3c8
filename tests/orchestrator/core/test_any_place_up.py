"""The policy any_place_up: where a slot goes after a preemption or a refusal, what it remembers, and when it waits."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.events import Observed, OfferRefused, RequestVm
from orchestrator.core.invariants import validate
from orchestrator.core.journal import facts, replay, story
from orchestrator.core.policy import (
    HALF_LIFE_S,
    REFUSES_S,
    failed_zone,
    places_in_order,
    recent_failures,
    zone_rank,
)
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState, Zone
from tests.orchestrator.core_driver import Driver, rows

PLACES = tuple(
    Place(f"gcp/region{n}/region{n}-a", "n1", "T4:1", True, Decimal("0.2"), "book") for n in range(4)
)


def spec(count: int = 1, places=PLACES, **more) -> RunSpec:
    policy = Policy("any_place_up", max_replacements=999, backoff_s=16.0, backoff_max_s=300.0)
    slots = tuple(SlotSpec("abcdefgh"[n], places, policy) for n in range(count))
    return RunSpec("r", slots, **{"boot_deadline_s": 9e9, "first_alone": False, **more})


def requests(made) -> list[RequestVm]:
    return [i for i in made if isinstance(i, RequestVm)]


def refused(run: Driver, request: RequestVm, kind="no_capacity") -> None:
    run.feed(OfferRefused(run.now_s, request.vm, kind, "no room"))


def test_after_a_preemption_another_place_is_asked_at_once():
    run = Driver(spec())
    (first,) = requests(run.tick())
    assert first.place == 0
    run.sees(first.vm, phase="training", maddr="/a")
    run.sees(first.vm, state="preempted")
    assert run.of("a").retry_at_s == run.now_s
    (second,) = requests(run.tick(0.1))
    assert second.place == 1
    assert run.of("a").cause.endswith("next at 00:01:41: region1-a at $0.20/h")
    assert f"a VM was preempted at {PLACES[0].market}" in "\n".join(story(rows(run)))
    assert replay(rows(run)) == run.state


def test_two_preemptions_at_the_same_time_have_the_same_cause():
    state, zone = Driver(spec()).state, Zone("z")
    once, twice = failed_zone(zone, 10.0), failed_zone(failed_zone(zone, 10.0), 10.0)
    for before, after in ((zone, once), (once, twice)):
        (fact,) = facts(state, state, (), ((before, after),))
        assert fact.cause == "a VM was preempted at z"


def test_failure_of_the_peer_is_no_preemption_and_waits():
    run = Driver(spec())
    (first,) = requests(run.tick())
    run.sees(first.vm, phase="training", maddr="/a")
    run.sees(first.vm, state="failed", ended=True)
    assert run.of("a").retry_at_s == run.now_s + 16.0
    assert run.state.zones == ()


def test_every_place_is_asked_before_it_waits():
    run = Driver(spec())
    asked = []
    for _ in PLACES:
        (request,) = requests(run.tick(1.0))
        asked.append(request.place)
        refused(run, request)
    assert asked == [0, 1, 2, 3]
    assert requests(run.tick(15.0)) == []
    assert run.of("a").retry_at_s == pytest.approx(run.now_s + 1.0)
    (request,) = requests(run.tick(2.0))
    assert request.place == 0, "the one refused longest ago"
    for _ in range(200):  # it goes on for as long as it takes
        for request in requests(run.tick(400.0)):
            refused(run, request)
    assert run.of("a").state in (SlotState.WAITING, SlotState.PROVISIONING)
    assert not run.state.stop_status


def test_the_memory_of_one_slot_helps_the_others():
    run = Driver(spec(3))
    first, *others = requests(run.tick())
    assert [first.place, *(o.place for o in others)] == [0, 0, 0]
    run.sees(others[0].vm, phase="training", maddr="/b")
    run.sees(others[1].vm, phase="training", maddr="/c")
    refused(run, first)
    assert [r.place for r in requests(run.tick(0.1))] == [1]
    run.sees(others[1].vm, state="preempted")
    assert [r.place for r in requests(run.tick(0.1)) if r.slot == "c"] == [1]


def test_a_failure_is_forgotten_after_hours():
    run = Driver(spec())
    (request,) = requests(run.tick())
    refused(run, request)
    (request,) = requests(run.tick(1.0))
    run.sees(request.vm, phase="training", maddr="/a")
    run.now_s += 2 * HALF_LIFE_S
    run.sees(request.vm, state="preempted")
    (request,) = requests(run.tick(0.1))
    assert request.place == 2, "0 counts a quarter, 1 counts one"
    run.sees(request.vm, phase="training", maddr="/a")
    run.now_s += 4 * HALF_LIFE_S
    run.sees(request.vm, state="preempted")
    assert [r.place for r in requests(run.tick(0.1))] == [0]


def test_closed_zones_and_limits_hold():
    run = Driver(spec(2, vms_per_min=3, breaker_failures=1, breaker_open_s=500.0))
    for request in requests(run.tick()):
        refused(run, request)
    assert [r.place for r in requests(run.tick(0.1))] == [1], "two and one are three within a minute"
    assert run.state.held_back.startswith("limits.vms_per_min")
    (request,) = [r for r in requests(run.tick(70.0)) if r.slot == "b"]
    assert request.place == 1
    expensive = Driver(spec(1, budget_usd=Decimal("0.001")))
    expensive.tick()
    assert expensive.state.stop_status == "budget"


def test_old_journal_rows_of_zones_have_no_failures():
    assert Zone("m", 2, 5.0) == Zone("m", 2, 5.0, "", 0.0, 0.0)
    run = Driver(spec())
    (request,) = requests(run.tick())
    refused(run, request)
    old = [
        replace(row, data_json='{"market": "m", "refusals": 1, "closed_until_s": 0.0, "probe": ""}')
        if row.kind == "zone"
        else row
        for row in rows(run)
    ]
    assert replay(old).zones == (Zone("m", 1),)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.booleans()), max_size=20))
def test_memory_decays_and_grows_by_one(steps):
    zone, now_s = Zone("m"), 0.0
    for after_s, fails in steps:
        before = recent_failures(zone, now_s)
        now_s += after_s
        decayed = recent_failures(zone, now_s)
        assert 0.0 <= decayed <= before + 1e-12
        if fails:
            zone = failed_zone(zone, now_s)
            assert recent_failures(zone, now_s) == decayed + 1.0


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 2000.0)), min_size=4, max_size=4))
def test_order_is_by_failures_and_places_that_refuse_are_last(known):
    """`known`: failures as of the last one, and how long ago that was."""
    now_s = 5000.0
    zones = [Zone("m", 0, 0.0, "", failures, now_s - ago_s) for failures, ago_s in known]
    ranks = {place: zone_rank(zone, now_s) for place, zone in zip(PLACES, zones, strict=True)}
    order = places_in_order(SlotSpec("a", PLACES, Policy("any_place_up")), 2, lambda place: ranks[place])
    assert sorted(order) == [0, 1, 2, 3]
    refuse = [n for n in order if known[n][0] > 0 and known[n][1] < REFUSES_S]
    others = [n for n in order if n not in refuse]
    assert order == [*others, *refuse]
    assert others == sorted(others, key=lambda n: (recent_failures(zones[n], now_s), n))
    assert [zones[n].recent_at_s for n in refuse] == sorted(zones[n].recent_at_s for n in refuse)


@given(
    st.lists(
        st.tuples(st.sampled_from(["up", "refuse", "preempt", "fail"]), st.floats(0.1, 4000.0)), max_size=40
    )
)
@settings(deadline=None)
def test_a_slot_never_waits_while_a_place_was_not_asked(steps):
    """In any history: a valid state that its journal rebuilds; after a preemption or a refusal one of the other places is next."""
    run = Driver(spec(breaker_failures=99, vms_per_min=10**6, replacements_per_h=10**6))
    for what, after_s in steps:
        run.tick(after_s)
        slot = run.of("a")
        if slot.state is SlotState.PROVISIONING and what == "refuse":
            refused(run, RequestVm(slot.vm, "a", slot.generation, slot.place, ()))
            if run.of("a").refusals % len(PLACES):
                assert run.of("a").retry_at_s == run.now_s
            assert run.of("a").place != slot.place
        elif slot.vm and what == "preempt":
            run.feed(Observed(run.now_s, slot.vm, "preempted"))
            assert run.of("a").retry_at_s == run.now_s
        elif slot.vm and what == "fail":
            run.feed(Observed(run.now_s, slot.vm, "failed", ended=True))
        elif slot.vm and what == "up":
            run.sees(slot.vm, phase="training", maddr="/a")
        validate(run.state)
    assert replay(rows(run)) == run.state
