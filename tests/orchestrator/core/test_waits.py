"""Every wait is bounded: unanswered requests, hanging peers, peers that can never join."""

from dataclasses import replace
from decimal import Decimal

import pytest

from orchestrator.core.events import Observed, OfferRefused, Requested, RequestVm, TerminateVm
from orchestrator.core.observations import Swarm, silent
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from orchestrator.launch.rented import BARRIER_S, patient
from tests.orchestrator.core_driver import Driver

IOWA = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("0.18"), "book")
BELGIUM = Place("aws/eu-west-1/eu-west-1b", "g4dn", "T4:1", True, Decimal("0.12"), "book")


def spec(count: int = 2, replace_by: str = "next_place", policy=None, **more) -> RunSpec:
    made = Policy(replace_by, **{"backoff_s": 1.0, **(policy or {})})
    slots = tuple(SlotSpec("abc"[n], (IOWA, BELGIUM), made) for n in range(count))
    return RunSpec("r", slots, **more)


def refuse(run: Driver, vm: str, kind: str) -> None:
    run.feed(OfferRefused(run.now_s, vm, kind, "no answer" if kind == "ambiguous" else "ExpiredToken"))


def requests(made) -> list[RequestVm]:
    return [i for i in made if isinstance(i, RequestVm)]


# Requests that are not answered


def test_an_unanswered_request_is_moved_elsewhere_and_its_vm_ended():
    run = Driver(spec(1))
    for _ in range(5):
        (request,) = requests(run.tick(100))
        assert (request.vm, request.place) == ("r-a-0", 0)
        refuse(run, request.vm, "ambiguous")
    a = run.of("a")
    assert (a.state, a.vm, a.ending, a.place) == (SlotState.WAITING, "", "r-a-0", 1)
    assert "no answer from us-central1-a for 400 s, r-a-0 is ended in case it exists" in a.cause
    made = run.tick(100)
    assert [type(i) for i in made] == [TerminateVm]
    run.sees("r-a-0", state="terminated")
    assert [(r.vm, r.place) for r in requests(run.tick(100))] == [("r-a-1", 1)]


@pytest.mark.parametrize("replace_by", ["same_place", "next_place", "cheapest_place", "never"])
def test_a_provider_that_never_answers_ends_the_run(replace_by):
    run = Driver(spec(replace_by=replace_by))
    for _ in range(100):
        for made in run.tick(100):
            if isinstance(made, RequestVm):
                refuse(run, made.vm, "ambiguous")
            elif isinstance(made, TerminateVm):
                run.sees(made.vm, state="terminated")
        if run.state.ended:
            break
    assert (run.state.stop_status, run.state.ended) == ("no_capacity", True)


def test_a_transient_refusal_restarts_the_timeout_unless_a_vm_may_exist():
    run = Driver(spec(1))
    run.tick()
    run.tick(50)
    refuse(run, "r-a-0", "transient")
    assert (run.of("a").since_s, run.of("a").vm) == (run.now_s, "r-a-0")
    run.tick(50)
    refuse(run, "r-a-0", "ambiguous")
    asked_s = run.of("a").since_s
    run.tick(50)
    refuse(run, "r-a-0", "transient")
    assert (run.of("a").since_s, run.of("a").ambiguous) == (asked_s, True)
    refuse(run, "r-a-0", "no_capacity")
    assert run.of("a").ending == "r-a-0"


def test_an_answer_in_between_restarts_the_timeout():
    run = Driver(spec(1))
    run.tick()
    for _ in range(2):
        refuse(run, "r-a-0", "ambiguous")
        run.tick(100)
    run.feed(Requested(run.now_s, "r-a-0"))
    assert (run.of("a").state, run.of("a").refusals) == (SlotState.BOOTING, 0)


# Peers that hang


def test_a_peer_that_is_ready_and_never_trains_is_replaced():
    run = Driver(spec(1))
    run.tick()
    run.sees("r-a-0", phase="starting")
    run.tick(200)
    run.sees("r-a-0", phase="ready", maddr="/a")
    run.tick(run.state.spec.start_deadline_s - 201)
    assert run.of("a").state is SlotState.JOINING
    run.tick(2)
    assert run.of("a").ending == "r-a-0"
    assert run.of("a").cause.startswith("did not train within 670 s (its phase: ready)")


def test_a_peer_may_take_longer_to_download_a_checkpoint_before_it_is_ready():
    run = Driver(spec(1, restore_s=500.0))
    run.tick()
    run.sees("r-a-0", phase="dht")
    run.tick(run.state.spec.join_deadline_s + 499.0)
    assert run.of("a").state is SlotState.JOINING
    run.tick(2)
    assert run.of("a").cause.startswith("did not join within 800 s (its phase: dht)")
    assert run.state.spec.start_deadline_s == 2 * 800.0 + 70.0


def test_the_start_deadline_is_longer_than_peers_wait_for_each_other():
    for count in (1, 8, 150):
        slots = tuple(SlotSpec(f"s{n}", (IOWA,)) for n in range(count))
        made = RunSpec("r", slots)
        assert made.start_deadline_s == 2 * made.join_deadline_s + 60.0 + 10.0 * count
        rented = patient(made)
        assert rented.start_deadline_s == 2 * rented.join_deadline_s + BARRIER_S


def test_a_peer_that_hangs_while_leaving_becomes_silent():
    run = Driver(spec()).train()
    run.sees("r-a-0", phase="leaving")
    watching = Swarm(run.now_s + 200.0, {"r-b-0": run.now_s + 200.0})
    assert [e.vm for e in silent(run.state, watching, run.now_s + 200.0)] == ["r-a-0"]


# Peers that can never come


def test_a_run_that_cannot_reach_min_peers_again_ends():
    run = Driver(spec(replace_by="never", min_peers=2)).train()
    run.tick()
    run.sees("r-a-0", state="preempted")
    assert run.state.stop_status == "failed"
    assert run.state.stop_cause.startswith(
        "only 1 can ever train again, fewer than min_peers 2: a: preempted"
    )


def test_a_run_continues_with_enough_peers_or_a_done_one():
    run = Driver(spec(3, replace_by="never", min_peers=2)).train()
    run.tick()
    run.sees("r-a-0", state="preempted")
    assert not run.state.stop_status
    run = Driver(spec(replace_by="never", min_peers=2)).train()
    run.sees("r-a-0", phase="done")
    run.sees("r-b-0", state="preempted")
    assert not run.state.stop_status
    assert run.state.finishing_s is not None


def test_more_min_peers_than_slots_is_no_reason_to_end():
    run = Driver(spec(1, min_peers=5))
    run.tick()
    assert not run.state.stop_status


# What one cloud says is not what all say


@pytest.mark.parametrize("kind", ["credentials", "invalid"])
def test_one_clouds_refusal_does_not_end_training_peers(kind):
    run = Driver(spec()).train()
    run.sees("r-a-0", state="preempted")
    (request,) = requests(run.tick(10))
    refuse(run, request.vm, kind)
    assert not run.state.stop_status
    assert run.of("b").state is SlotState.TRAINING
    (after,) = requests(run.tick(100))
    assert after.place != request.place
    run.sees("r-b-0", state="preempted")
    refuse(run, after.vm, kind)
    assert run.state.stop_status == "failed"  # with nobody left it is what the user has to know


def test_a_vm_listed_as_ended_after_its_request_was_refused_is_no_loss():
    """Dearer than the ceiling: the provider rented it, ended it, bills it, and refuses."""
    listed = {"state": "terminated", "ended": True, "cause": "dearer than its ceiling"}
    run = Driver(spec(1, breaker_failures=9))
    run.tick()
    run.feed(OfferRefused(run.now_s, "r-a-0", "no_capacity", "dearer than its ceiling"))
    run.feed(Observed(run.now_s, "r-a-0", **listed))
    after = run.of("a")
    assert (after.generation, after.lost, after.refusals) == (1, 0, 1)
    early = Driver(spec(1, breaker_failures=9))  # the list came before the answer
    early.tick()
    early.feed(Observed(early.now_s, "r-a-0", **listed))
    early.feed(OfferRefused(early.now_s, "r-a-0", "no_capacity", "dearer than its ceiling"))
    assert early.of("a") == replace(after, cause=early.of("a").cause)


def test_equal_vm_names_are_compared_by_value():
    """Names that were read from a journal or a reply are equal to those in the state, and other objects."""
    run = Driver(spec(1, first_alone=False))
    run.tick()
    refuse(run, "-".join(("r", "a", "0")), "credentials")
    assert run.state.stop_status == "failed"
