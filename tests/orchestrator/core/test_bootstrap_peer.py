"""All VMs are requested at once, and exactly one of the ready ones starts the swarm."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.events import (
    Missing,
    Observed,
    OfferRefused,
    Requested,
    RequestVm,
    StopWanted,
    TerminateVm,
)
from orchestrator.core.indexed_state import WorkingState
from orchestrator.core.journal import replay, story
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from orchestrator.simulation.checks import SimulationError
from orchestrator.simulation.driver import simulate
from orchestrator.simulation.scenario import scenario
from tests.orchestrator.core_driver import Driver, rows

PLACE = Place("aws/us-west-2/us-west-2a", "g4dn.xlarge", "T4:1", True, Decimal("0.2"), "book")
NEVER_GIVES_UP = Policy("same_place", 10**6, 10**6, backoff_s=1.0, backoff_max_s=1.0)


def spec(count: int = 3, **changes) -> RunSpec:
    slots = tuple(SlotSpec("abcdefgh"[n], (PLACE,), NEVER_GIVES_UP) for n in range(count))
    return RunSpec("r", slots, **{"first_alone": False, "breaker_failures": 10**6, **changes})


def asked(made) -> list[str]:
    return [i.vm for i in made if isinstance(i, RequestVm)]


def test_all_vms_are_requested_at_once_within_the_limits():
    run = Driver(spec())
    assert asked(run.tick()) == ["r-a-0", "r-b-0", "r-c-0"]
    run = Driver(spec(5, vms_per_min=3))
    assert asked(run.tick()) == ["r-a-0", "r-b-0", "r-c-0"]
    assert asked(run.tick(10)) == ["r-a-0", "r-b-0", "r-c-0"], "the same ones again"
    assert asked(run.tick(61)) == [f"r-{n}-0" for n in "abcde"]
    dear = replace(spec(), max_usd_per_h=Decimal("0.5"))
    assert asked(Driver(dear).tick()) == ["r-a-0", "r-b-0"]


def test_first_ready_vm_starts_the_swarm_and_others_wait_for_its_address():
    run = Driver(spec())
    run.tick()
    run.sees("r-a-0", state="pending")
    assert run.state.seed == ""
    run.sees("r-c-0", phase="waiting")
    run.tick()
    assert run.state.seed == "r-c-0"
    run.sees("r-b-0", phase="waiting")
    run.tick()
    run.sees("r-c-0", phase="starting")
    run.tick()
    assert run.state.seed == "r-c-0"
    assert run.state.maddrs() == ()
    run.sees("r-c-0", phase="dht", maddr="/c")
    run.tick()
    assert (run.state.seed, run.state.maddrs()) == ("r-c-0", ("/c",))
    assert run.of("b").cause == "it is ready to be told whom to join"
    told = "\n".join(story(rows(run)))
    assert "c#0 JOINING: it begins the swarm: the others join it (phase waiting)" in told
    assert replay(rows(run)) == run.state


def test_lost_first_peer_is_succeeded_once_it_is_gone():
    run = Driver(spec())
    run.tick()
    for name in "abc":
        run.sees(f"r-{name}-0", phase="waiting")
    run.tick()
    assert run.state.seed == "r-a-0"
    run.sees("r-a-0", phase="failed")
    ended = run.tick()
    assert [i.vm for i in ended if isinstance(i, TerminateVm)] == ["r-a-0"]
    assert run.state.seed == "", "it may still be joined by somebody"
    run.sees("r-a-0", state="terminated")
    run.tick()
    assert run.state.seed == "r-b-0"
    run.sees("r-b-0", state="preempted")
    run.tick()
    assert run.state.seed == "r-c-0"
    assert "r-a-0, which began it, is lost" in "\n".join(story(rows(run)))


def test_no_second_swarm_while_a_joining_vm_may_appear():
    run = Driver(spec())
    run.tick()
    run.sees("r-a-0", phase="training", maddr="/a")
    run.sees("r-b-0", phase="waiting")
    run.sees("r-c-0", phase="waiting")
    run.sees("r-b-0", phase="starting")  # it was told /a
    run.sees("r-a-0", state="preempted")
    run.tick()
    assert run.state.seed == ""
    run.sees("r-b-0", phase="dht", maddr="/b")  # it was in time
    run.tick()
    assert (run.state.seed, run.state.maddrs()) == ("", ("/b",))
    run.sees("r-b-0", state="preempted")
    run.tick()
    assert run.state.seed == "r-c-0"


def test_a_vm_with_a_preemption_notice_does_not_start_the_swarm():
    run = Driver(spec(2))
    run.tick()
    run.sees("r-a-0", phase="waiting", notice_at_s=run.now_s + 120)
    run.tick()
    run.sees("r-b-0", phase="waiting")
    run.tick()
    assert run.state.seed == ""
    run.sees("r-a-0", state="preempted")
    run.tick()
    assert run.state.seed == "r-b-0"


def test_waiting_for_the_first_peer_does_not_use_up_the_join_deadline():
    run = Driver(spec(boot_deadline_s=1200.0, join_deadline_s=600.0))
    run.tick()
    for name in "abc":
        run.sees(f"r-{name}-0", phase="waiting")
    run.tick(400)
    assert run.state.seed == "r-a-0"
    run.tick(601)
    assert run.of("a").cause.startswith("did not join within 600 s (its phase: waiting)")
    assert [run.of(n).state for n in "bc"] == [SlotState.JOINING] * 2
    run.sees("r-a-0", state="terminated")
    run.tick()
    assert run.state.seed == "r-b-0"
    run.sees("r-b-0", phase="starting")
    run.tick(190)
    assert run.of("b").state is SlotState.JOINING
    run.tick(30)
    assert run.of("c").cause.startswith("did not join within 1200 s"), "nobody is billed for ever"
    run.tick(400)
    assert run.of("b").cause.startswith("did not join within 600 s (its phase: starting)")


def test_a_refused_slot_keeps_retrying_while_another_has_a_vm():
    picky = tuple(replace(s, policy=Policy(max_refusals=2)) for s in spec(2).slots)
    run = Driver(replace(spec(2), slots=picky, join_deadline_s=9e9))
    run.tick()
    run.feed(Requested(run.now_s, "r-a-0"))
    for _ in range(9):
        for vm in asked(run.tick(70)):
            run.feed(OfferRefused(run.now_s, vm, "no_capacity", "none"))
        run.sees("r-a-0", phase="waiting")
    assert run.of("b").refusals > 4
    assert run.of("b").state in (SlotState.WAITING, SlotState.PROVISIONING)


NEVER = Policy("never", backoff_s=1.0, backoff_max_s=1.0)


def never(count: int) -> RunSpec:
    made = spec(count)
    return replace(made, slots=tuple(replace(s, policy=NEVER) for s in made.slots))


def test_a_slot_is_not_given_up_while_another_request_is_in_progress():
    run = Driver(never(2))
    run.tick()
    run.feed(OfferRefused(run.now_s, "r-a-0", "quota", "quota"))
    assert run.of("a").state is SlotState.WAITING
    run.feed(Requested(run.now_s, "r-b-0"))
    assert asked(run.tick(5)) == ["r-a-1"]


@pytest.mark.parametrize("kind", ["quota", "no_capacity", "transient"])
def test_slots_that_are_all_refused_do_not_wait_for_each_other(kind):
    run = Driver(never(3))
    for _ in range(9):
        for vm in asked(run.tick(5)):
            run.feed(OfferRefused(run.now_s, vm, kind, "none"))
    assert run.state.stop_status == "no_capacity"


def test_slots_that_retry_in_turn_do_not_wait_for_each_other():
    """One is always asking: each is refused just after the other has begun to ask again."""
    run = Driver(never(2))
    vms = asked(run.tick())
    for _ in range(9):
        if vms:
            run.feed(OfferRefused(run.now_s, vms[0], "no_capacity", "none"))
        vms = vms[1:] + [vm for vm in asked(run.tick(5)) if vm not in vms]
    assert run.state.stop_status == "no_capacity"


@pytest.mark.parametrize("kind", ["credentials", "invalid"])
def test_a_permanent_refusal_ends_the_run_if_no_other_vm_is_pending(kind):
    run = Driver(spec())
    run.tick()
    run.feed(OfferRefused(run.now_s, "r-a-0", kind, "ExpiredToken"))
    run.feed(Requested(run.now_s, "r-b-0"))
    run.feed(OfferRefused(run.now_s, "r-c-0", kind, "ExpiredToken"))
    assert not run.state.stop_status
    run.sees("r-b-0", state="preempted")
    for vm in asked(run.tick(5)):
        run.feed(OfferRefused(run.now_s, vm, kind, "ExpiredToken"))
    assert run.state.stop_status == "failed"
    every = Driver(spec())
    for vm in asked(every.tick()):
        assert not every.state.stop_status
        every.feed(OfferRefused(every.now_s, vm, kind, "ExpiredToken"))
    assert every.state.stop_status == "failed", "each was refused once: none is asked again"


def test_no_new_swarm_starts_after_the_first_peers_are_done():
    run = Driver(spec(2))
    run.tick()
    run.sees("r-a-0", phase="done", maddr="/a")
    run.sees("r-b-0", phase="waiting")
    run.tick()
    assert run.state.seed == ""


def test_simulation_detects_a_controller_that_starts_two_swarms(monkeypatch: pytest.MonkeyPatch):
    """Mutated: whoever is ready begins a swarm."""

    def hasty(work: WorkingState, now_s: float) -> None:
        if work.waiting:
            work.run = replace(work.run, seed=work.slots[min(work.waiting)].vm)

    made = scenario(1, days=0.1, faults=())
    assert not made.spec.first_alone
    assert simulate(made).epochs > 0
    monkeypatch.setattr("orchestrator.core.machine.choose_seed", hasty)
    with pytest.raises(SimulationError, match="a second swarm was started while"):
        simulate(made)


# Never two, whatever happens and in whatever order.

NAMES = "abcd"
PHASES = ("waiting", "starting", "dht", "training", "failed")
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.sampled_from([1.0, 20.0, 400.0])),
        st.tuples(
            st.sampled_from(["up", "up", "up", "goes on", "preempted", "ended"]), st.sampled_from(NAMES)
        ),
    ),
    max_size=60,
)


@given(HAPPENINGS, st.booleans())
@settings(max_examples=200, derandomize=True, deadline=None)
def test_exactly_one_live_vm_started_the_swarm(happenings, first_alone):
    run = Driver(spec(len(NAMES), first_alone=first_alone))
    living: dict[str, str] = {}  # what is really there, and its phase
    began: set[str] = set()
    for what, who in happenings:
        if what == "tick":
            run.tick(who)
        else:
            slot = run.of(who)
            vm = slot.vm or slot.ending
            if what == "up" and slot.vm:
                living.setdefault(vm, "waiting")
            elif what == "goes on" and vm in living:
                told = vm == run.state.seed or run.state.maddrs() or living[vm] != "waiting"
                living[vm] = PHASES[min(PHASES.index(living[vm]) + bool(told), 4)]
            elif what in ("preempted", "ended") and vm in living and (what == "preempted" or slot.ending):
                del living[vm]
                run.feed(Observed(run.now_s, vm, "preempted" if what == "preempted" else "terminated"))
            elif what == "ended" and slot.ending and vm not in living:
                run.feed(Missing(run.now_s, vm))
            if vm in living:
                phase = living[vm]
                run.sees(vm, phase=phase, maddr="" if phase in ("waiting", "starting") else f"/{vm}")
        if run.state.seed:
            began.add(run.state.seed)
        assert len(began & living.keys()) <= 1, (began, living)
        if run.state.seed in living and living[run.state.seed] == "waiting":
            up = [vm for vm, phase in living.items() if phase in ("dht", "training") and vm != run.state.seed]
            assert up == [], "it would begin a second swarm"
        assert replay(rows(run)) == run.state
    run.feed(StopWanted(run.now_s, "stopped", "the test is over"))
    run.tick()
