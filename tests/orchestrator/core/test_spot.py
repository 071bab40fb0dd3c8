"""Spot VMs in the core: refusing zones, notices, unlisted VMs, pauses, and the causes that explain them."""

from dataclasses import replace
from decimal import Decimal

from metrics.records import EventRecord
from orchestrator.core.events import (
    MONITOR,
    Missing,
    Observed,
    OfferRefused,
    Requested,
    RequestVm,
    StopWanted,
    TerminateVm,
)
from orchestrator.core.journal import created, replay, story
from orchestrator.core.observations import Unlisted, changed_observations, missing
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from tests.orchestrator.core_driver import Driver

BELGIUM = Place("gcp/europe-west1/europe-west1-b", "n1", "T4:1", True, Decimal("0.12"), "book")
HOLLAND = Place("gcp/europe-west4/europe-west4-a", "n1", "T4:1", True, Decimal("0.21"), "book")
NEVER_GIVES_UP = {"max_refusals": 99, "max_replacements": 99, "backoff_s": 1.0}


def spec(count: int = 2, policy: str = "next_place", places=(BELGIUM, HOLLAND), **more) -> RunSpec:
    slots = tuple(SlotSpec("abcdefgh"[n], places, Policy(policy, **NEVER_GIVES_UP)) for n in range(count))
    return RunSpec("r", slots, **{"boot_deadline_s": 9e9, **more})


def refuse(run: Driver, request: RequestVm, kind="no_capacity") -> None:
    run.feed(OfferRefused(run.now_s, request.vm, kind, "ZONE_RESOURCE_POOL_EXHAUSTED"))


def requests(made) -> list[RequestVm]:
    return [i for i in made if isinstance(i, RequestVm)]


def rows(run: Driver) -> list[EventRecord]:
    facts = [created(run.state.spec), *run.facts]
    return [
        EventRecord(
            n, 0.0, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json
        )
        for n, f in enumerate(facts)
    ]


def closed_belgium(run: Driver) -> float:
    """The zone refuses the first slot three times; returns until when it is closed."""
    for _ in range(3):
        (request,) = requests(run.tick(20))
        assert run.state.slot_spec("a").places[request.place] == BELGIUM
        refuse(run, request)
    return run.now_s + run.state.spec.breaker_open_s


def test_a_zone_closes_after_three_refusals_then_is_probed_by_one_vm():
    run = Driver(spec(policy="same_place", breaker_open_s=300.0))
    until_s = closed_belgium(run)
    assert requests(run.tick(100)) == []
    assert run.of("a").retry_at_s >= until_s
    run.now_s = until_s
    (probe,) = requests(run.tick(400))
    assert requests(run.tick()) == [probe]  # the same one, until it is answered
    refuse(run, probe)
    assert run.state.zones[0].refusals == 4
    assert requests(run.tick(250)) == []  # one refusal on trial closes it again
    (probe,) = requests(run.tick(200))
    run.feed(Requested(run.now_s, probe.vm))
    assert run.state.zones[0].refusals == 0
    run.sees(probe.vm, phase="training", maddr="/a")
    assert [r.slot for r in requests(run.tick())] == ["b"]


def test_the_breaker_counts_capacity_refusals_of_all_slots():
    run = Driver(spec(4, policy="same_place", places=(BELGIUM,)))
    (first,) = requests(run.tick())
    run.sees(first.vm, phase="training", maddr="/a")
    for request, kind in zip(requests(run.tick()), ("no_capacity", "quota", "transient"), strict=True):
        refuse(run, request, kind)
    assert run.state.zones[0].refusals == 2
    (request,) = [r for r in requests(run.tick(30)) if r.slot == "b"]
    refuse(run, request)
    assert run.state.zones[0].closed_until_s > run.now_s


def test_the_others_wait_for_the_probe():
    run = Driver(spec(3, policy="same_place"))
    (first,) = requests(run.tick())
    run.sees(first.vm, phase="training", maddr="/a")
    for _ in range(4):
        for request in requests(run.tick(30)):
            refuse(run, request)
    assert run.state.zones[0].closed_until_s > run.now_s
    run.tick(400)
    asking = [s for s in run.state.slots if s.state is SlotState.PROVISIONING]
    assert len(asking) == 1
    waiting = next(s for s in run.state.slots if s.state is SlotState.WAITING)
    assert waiting.cause.endswith(f"{asking[0].vm} is asking it again")


def test_next_place_skips_a_closed_zone_and_records_it():
    run = Driver(spec(3))
    (first,) = requests(run.tick())
    run.sees(first.vm, phase="training", maddr="/a")
    run.state = replace(run.state, index=None)
    for _ in range(9):  # b and c go back and forth until a zone is closed
        for request in requests(run.tick(20)):
            if run.state.slot_spec("b").places[request.place] == BELGIUM:
                refuse(run, request)
            else:
                run.sees(request.vm, state="preempted")
        if any(z.closed_until_s > run.now_s for z in run.state.zones):
            break
    zone = run.state.zones[0]
    assert zone.market == BELGIUM.market
    run.tick(20)
    asked = [s for s in run.state.slots if s.name != "a" and s.vm]
    assert asked
    assert {s.place for s in asked} == {1}
    told = "\n".join(story(rows(run)))
    assert f"{zone.market} refused 3 times in a row: not asked before 00:" in told


def test_story_of_a_refused_slot():
    run = Driver(spec(1, breaker_failures=1, breaker_open_s=250.0))
    (request,) = requests(run.tick())
    refuse(run, request)
    cause = run.of("a").cause
    assert cause == (
        "ZONE_RESOURCE_POOL_EXHAUSTED; europe-west1-b refused, next try 00:05:51; trying europe-west4-a at $0.21/h"
    )
    (request,) = requests(run.tick(2))
    refuse(run, request)
    run.tick(2)  # both are closed: it waits for the first to open
    assert run.of("a").cause == (
        "europe-west1-b refused once, next try 00:05:51; europe-west4-a refused once, next try 00:05:53"
    )
    assert run.of("a").retry_at_s == 101 + 250


def test_the_cheapest_open_place_is_taken_after_a_loss():
    run = Driver(spec(2, policy="cheapest_place", places=(HOLLAND, BELGIUM), breaker_failures=1)).train()
    run.sees("r-a-0", state="preempted", cause="taken back")
    assert "next at" in run.of("a").cause
    (request,) = requests(run.tick(5))
    assert request.place == 1
    refuse(run, request)
    (request,) = requests(run.tick(5))
    assert request.place == 0
    assert run.of("a").cause.endswith("trying europe-west4-a at $0.21/h")


def test_a_slot_keeps_retrying_while_others_train():
    run = Driver(spec(2, policy="same_place", places=(BELGIUM,), breaker_failures=99))
    run.state = replace(run.state, spec=replace(run.state.spec, slots=tuple(
        replace(s, policy=replace(s.policy, max_refusals=3)) for s in run.state.spec.slots
    )))  # fmt: skip
    (first,) = requests(run.tick())
    run.sees(first.vm, phase="training", maddr="/a")
    for _ in range(20):
        for request in requests(run.tick(500)):
            refuse(run, request)
    assert run.of("b").state in (SlotState.WAITING, SlotState.PROVISIONING)
    assert run.of("b").refusals > 10
    run.sees("r-a-0", state="preempted")
    for _ in range(20):
        for request in requests(run.tick(500)):
            refuse(run, request)
    assert run.state.stop_status == "failed"


def test_the_run_pauses_below_min_peers_and_resumes():
    run = Driver(spec(3, policy="same_place", min_peers=2))
    run.tick()
    run.sees("r-a-0", phase="training", maddr="/a")
    run.tick()
    assert not run.state.paused  # it never had enough
    run.sees("r-b-0", phase="ready", maddr="/b")
    run.tick()
    assert run.state.enough
    run.sees("r-b-0", state="preempted")
    run.tick(0.1)
    assert run.state.paused
    began_s = run.now_s
    run.tick(10)
    run.sees("r-b-1", phase="training", maddr="/b")
    run.tick()
    assert not run.state.paused
    assert run.state.paused_s == run.now_s - began_s
    told = "\n".join(story(rows(run)))
    assert "running -> paused: fewer than 2 peers can train (min_peers)" in told
    assert "paused -> running: the pause is over" in told
    assert replay(rows(run)) == run.state


def test_done_peers_cause_no_pause():
    run = Driver(spec(2, min_peers=2)).train()
    run.tick()
    assert run.state.enough
    run.sees("r-a-0", phase="done")
    run.tick()
    assert not run.state.paused


def listed(run: Driver, vms, before, asked=()):
    run.now_s += 20
    return missing(run.state, set(vms), run.now_s, before, asked)


def test_absence_counts_after_three_lists_in_a_row():
    run = Driver(spec(2, missing_deadline_s=30.0)).train()
    both = ("r-a-0", "r-b-0", MONITOR)
    lost, before = listed(run, both[1:], {})
    assert lost == []
    lost, before = listed(run, both[1:], before)
    assert lost == []
    lost, before = listed(run, both, before)  # there it is: the count begins again
    assert before == {}
    for _ in range(2):
        lost, before = listed(run, both[1:], before)
        assert lost == []
    lost, before = listed(run, both[1:], before)
    assert lost == [Missing(run.now_s, "r-a-0")]
    assert "r-a-0" not in before, "once it is being ended it has three lists again"


def test_an_old_vm_may_be_unlisted_as_long_as_a_new_one():
    """Three lists come within seconds: a provider whose lists lack VMs for half a minute keeps its contract."""
    run = Driver(spec(2, missing_deadline_s=30.0)).train()
    run.now_s += 7200.0
    began_s, before, lost = run.now_s, {}, []
    while not lost:
        run.now_s += 2.0
        lost, before = missing(run.state, {"r-b-0", MONITOR}, run.now_s, before)
    assert 30.0 < run.now_s - began_s <= 36.0


def test_an_unlisted_vm_is_terminated_before_it_is_replaced():
    """Lists that lack living VMs would otherwise double a slot's VM, and the lost one would be in no bill."""
    run = Driver(spec(2)).train()
    run.feed(Missing(run.now_s, "r-a-0"))
    for _ in range(90):
        did = run.tick()
        assert [i.vm for i in did if isinstance(i, TerminateVm)] == ["r-a-0"]
        assert not any(isinstance(i, RequestVm) for i in did)
    run.feed(Missing(run.now_s, "r-a-0"))
    assert [i.vm for i in run.tick() if isinstance(i, RequestVm)] == ["r-a-1"]


def test_a_vm_with_a_request_in_progress_is_not_missing():
    run = Driver(spec(1))
    run.tick()
    run.feed(StopWanted(run.now_s, "stopped", "the user"))
    before = {"r-a-0": Unlisted(9, 0.0)}
    assert listed(run, (), before, asked=("r-a-0",))[0] == []
    assert listed(run, (), before)[0] == [Missing(run.now_s, "r-a-0")]


def test_a_monitor_that_is_no_longer_listed_is_lost():
    run = Driver(spec(2, missing_deadline_s=30.0)).train()
    before = {}
    for _ in range(3):
        lost, before = listed(run, ("r-a-0", "r-b-0"), before)
    assert lost == [Missing(run.now_s, MONITOR)]
    for event in lost:
        run.feed(event)
    assert run.state.monitors_lost == 1


def test_only_changed_observations_are_reported_and_all_periodically():
    run = Driver(spec(2)).train()
    seen = [Observed(5.0, "r-a-0", "running", "training"), Observed(5.0, "r-b-0", "running", "ready")]
    before = {o.vm: o for o in seen}
    later = [replace(seen[0], now_s=9.0), Observed(9.0, "r-b-0", "running", "training")]
    assert changed_observations(run.state, later, before, whole=False) == later[1:]
    assert changed_observations(run.state, later, before, whole=True) == later
    stray = Observed(5.0, "r-z-0", "running")
    assert changed_observations(run.state, [stray], {"r-z-0": stray}, whole=False) == [stray]
    assert run.feed(stray) == [TerminateVm("r-z-0", "it belongs to no slot any more")]


def test_a_closed_spot_market_leaves_the_zones_other_markets_open():
    on_demand = replace(BELGIUM, use_spot=False, usd_per_h=Decimal("0.35"))
    run = Driver(spec(1, places=(BELGIUM, on_demand), breaker_failures=1))
    (request,) = requests(run.tick())
    refuse(run, request)
    (request,) = requests(run.tick(5))
    assert request.place == 1
    assert run.of("a").cause.endswith("trying europe-west1-b on demand at $0.35/h")
