"""Announced preemptions: the VM is replaced at once and ends by itself."""

from dataclasses import replace
from decimal import Decimal

import pytest

from metrics.records import SWARM_LOST
from orchestrator.core.events import Missing, OfferRefused, RequestVm, Spending, StopWanted, TerminateVm
from orchestrator.core.invariants import InvariantError, validate
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from tests.orchestrator.core_driver import Driver

BELGIUM = Place("gcp/europe-west1/europe-west1-b", "n1", "T4:1", True, Decimal("0.12"), "book")
HOLLAND = Place("gcp/europe-west4/europe-west4-a", "n1", "T4:1", True, Decimal("0.21"), "book")


def spec(count: int = 2, policy: str = "same_place", **more) -> RunSpec:
    made = Policy(policy, max_refusals=99, max_replacements=99, backoff_s=1.0)
    slots = tuple(SlotSpec("ab"[n], (BELGIUM, HOLLAND), made) for n in range(count))
    return RunSpec("r", slots, **{"boot_deadline_s": 9e9, "silent_deadline_s": 60.0, **more})


def requested(made) -> list[str]:
    return [i.vm for i in made if isinstance(i, RequestVm)]


def ended(made) -> list[str]:
    return [i.vm for i in made if isinstance(i, TerminateVm)]


def noticed(**more) -> Driver:
    """Both train; a's VM was just announced to go at 00:02:30."""
    run = Driver(spec(**more)).train()
    run.sees("r-a-0", phase="training", notice_at_s=150.0)
    return run


def test_an_announced_vm_is_replaced_at_its_notice_and_ends_by_itself():
    run = noticed()
    a = run.of("a")
    assert (a.state, a.vm, a.ending, a.notice_at_s, a.lost) == (SlotState.WAITING, "", "r-a-0", 150.0, 1)
    assert a.cause == "preempted, as announced for 00:02:30; next at 00:01:43: europe-west1-b at $0.12/h"
    fact = run.facts[-1]
    assert (fact.kind, fact.vm, fact.generation) == ("transition", "r-a-0", 0)
    made = run.tick(2)
    assert requested(made) == ["r-a-1"]
    assert ended(made) == []
    assert made[0].initial_peers == ("/ip4/10.0.0.3/tcp/1/p2p/B",)  # nobody is pointed at one that leaves
    run.sees("r-a-0", phase="leaving", notice_at_s=151.0)  # the first notice counts
    assert run.of("a").notice_at_s == 150.0
    run.sees("r-a-1", phase="training", maddr="/n")
    run.sees("r-a-0", state="preempted")
    a = run.of("a")
    assert (a.state, a.vm, a.ending, a.notice_at_s, a.lost) == (SlotState.TRAINING, "r-a-1", "", None, 1)


@pytest.mark.parametrize("before", [0.0, 2.0], ids=["waiting", "requested"])
@pytest.mark.parametrize(
    "end",
    [
        lambda run: run.sees("r-a-0", state="failed", cause="exit code 0", ended=True),
        lambda run: run.sees("r-a-0", state="terminated"),
        lambda run: run.feed(Missing(run.now_s, "r-a-0")),
    ],
)
def test_an_announced_preemption_is_one_loss(end, before):
    run = noticed()
    run.tick(before)
    end(run)
    assert (run.of("a").ending, run.of("a").notice_at_s, run.of("a").lost) == ("", None, 1)
    assert requested(run.tick(10)) == ["r-a-1"]
    assert all("preempted" in f.cause for f in run.facts if f.vm == "r-a-0" and f.to_state == "WAITING")


def test_an_announced_vm_that_stays_is_terminated():
    run = noticed()
    run.tick(2)
    run.sees("r-a-1", phase="training", maddr="/n")
    assert ended(run.tick(150.0 + 60.0 - run.now_s - 1.0)) == []
    assert ended(run.tick()) == ["r-a-0"]
    assert run.of("a").vm == "r-a-1"


def test_an_announced_vm_is_terminated_once_its_program_has_ended():
    run = noticed()
    run.tick(2)
    run.sees("r-a-0", phase="leaving")
    run.sees("r-a-0", state="failed", cause="exit code 0")  # still there, and billed
    (made,) = [i for i in run.tick() if isinstance(i, TerminateVm)]
    assert (made.vm, made.cause) == ("r-a-0", "it was announced to go, and r-a-1 has its place")
    assert run.of("a").vm == "r-a-1"
    before = run.state
    run.sees("r-a-0", state="failed", cause="exit code 0")
    assert run.state == before
    waiting = noticed()
    waiting.sees("r-a-0", state="failed", cause="exit code 0")
    assert ended(waiting.tick(0.1)) == ["r-a-0"]
    assert requested(waiting.tick(2)) == ["r-a-1"]  # it is not waited for


def test_a_lost_replacement_is_ended_first_and_the_old_vm_is_a_stray():
    run = noticed()
    run.tick(2)
    run.sees("r-a-1", state="failed", cause="no driver")
    a = run.of("a")
    assert (a.ending, a.notice_at_s, a.lost) == ("r-a-1", None, 2)
    assert a.cause.startswith("no driver; next at")  # the notice was the other one's
    made = run.tick(10)
    assert (requested(made), ended(made)) == ([], ["r-a-1"])
    assert ended(run.sees("r-a-0", phase="leaving")) == ["r-a-0"]
    run.sees("r-a-1", state="terminated")
    assert requested(run.tick(10)) == ["r-a-2"]


def test_a_gone_or_refused_replacement_is_replaced_during_the_notice():
    run = noticed()
    run.tick(2)
    run.feed(OfferRefused(run.now_s, "r-a-1", "no_capacity", "none there"))
    assert (run.of("a").ending, run.of("a").notice_at_s) == ("r-a-0", 150.0)
    assert requested(run.tick(5)) == ["r-a-2"]
    run.sees("r-a-2", phase="training", maddr="/n")
    run.sees("r-a-2", state="preempted")
    assert (run.of("a").ending, run.of("a").notice_at_s) == ("r-a-0", 150.0)
    assert requested(run.tick(5)) == ["r-a-3"]


def test_of_two_announced_vms_the_newer_counts():
    run = noticed()
    run.tick(2)
    run.sees("r-a-1", phase="training", maddr="/n", notice_at_s=200.0)
    assert (run.of("a").ending, run.of("a").notice_at_s) == ("r-a-1", 200.0)
    assert requested(run.tick(5)) == ["r-a-2"]


def test_a_stop_ends_both_at_once_and_waits_for_both():
    run = noticed()
    run.tick(2)
    run.feed(StopWanted(run.now_s, "stopped", "the user"))
    assert set(ended(run.tick())) == {"r-a-0", "r-a-1", "r-b-0"}
    run.sees("r-b-0", state="terminated")
    run.sees("r-a-0", state="terminated")
    assert ended(run.tick()) == ["r-a-1"]
    run.sees("r-a-1", state="terminated")
    run.sees("monitor", state="terminated")
    run.tick()
    run.sees("monitor", state="terminated")
    assert run.state.ended


@pytest.mark.parametrize("first", ["r-a-0", "r-a-1"])
def test_a_stop_waits_for_both_in_whichever_order_they_go(first):
    run = noticed()
    run.tick(2)
    run.feed(StopWanted(run.now_s, "stopped", "the user"))
    run.sees(first, state="terminated")
    other = {"r-a-0": "r-a-1", "r-a-1": "r-a-0"}[first]
    assert other in ended(run.tick())
    assert not run.state.ended


def test_a_stop_ends_an_announced_vm_without_a_replacement():
    run = noticed()
    run.feed(StopWanted(run.now_s, "stopped", "the user"))
    assert set(ended(run.tick())) == {"r-a-0", "r-b-0"}


def test_an_announced_vm_does_not_count_as_training():
    run = noticed(min_peers=2)
    run.tick(0.1)
    run.sees("r-a-0", phase="training")
    run.tick(0.1)
    assert not run.state.enough or run.state.paused


def test_a_leaving_peer_is_not_able_and_not_joinable():
    run = Driver(spec(min_peers=2, first_alone=False)).train()
    run.tick()
    assert run.state.enough
    run.sees("r-b-0", phase="leaving")
    run.tick()
    assert run.state.paused
    run.sees("r-a-0", state="preempted")
    (request,) = [i for i in run.tick(5) if isinstance(i, RequestVm)]
    assert request.initial_peers == ()


def test_a_peer_that_finished_before_its_preemption_is_done():
    run = noticed(count=2)
    run.sees("r-a-0", phase="done")
    assert run.of("a").state is SlotState.DONE
    run.sees("r-b-0", phase="done")
    assert run.state.finishing_s is not None


def lost_rows(run: Driver) -> int:
    return sum(fact.kind == SWARM_LOST for fact in run.facts)


@pytest.mark.parametrize(
    "end",
    [
        lambda run: run.sees("r-a-0", state="preempted"),
        lambda run: run.sees("r-a-0", state="failed", cause="exit code 0", ended=True),
        lambda run: run.sees("r-a-0", phase="failed"),
        lambda run: run.feed(Missing(run.now_s, "r-a-0")),
    ],
)
def test_the_swarm_is_lost_when_its_last_trainer_is_gone_and_not_at_its_notice(end):
    run = noticed()
    run.sees("r-b-0", state="preempted")
    run.tick(2)
    assert lost_rows(run) == 0  # a, announced to go, may finish, or hand on its state
    end(run)
    run.tick(2)
    assert lost_rows(run) == 1


def test_the_swarm_is_not_lost_if_its_last_trainer_finishes_or_hands_on_its_state():
    for phase, vm in (("done", "r-a-0"), ("training", "r-a-1")):
        run = noticed()
        run.sees("r-b-0", state="preempted")
        run.tick(2)
        run.sees(vm, phase=phase)
        run.sees("r-a-0", state="preempted")
        run.tick(2)
        assert lost_rows(run) == 0


def test_an_announced_vm_that_did_not_train_takes_nothing_with_it():
    run = Driver(spec())
    run.tick()
    run.sees("r-a-0", phase="ready", maddr="/ip4/10.0.0.2/tcp/1/p2p/A", notice_at_s=150.0)
    run.sees("r-a-0", state="preempted")
    run.tick()
    assert lost_rows(run) == 0


def test_both_count_as_held():
    run = noticed(max_usd_per_h=Decimal("0.40"))
    made = run.tick(2)  # 0.12 of b, at worst 0.21 of the one that goes, and 0.12 would be too much
    assert requested(made) == []
    assert "would pass max_usd_per_h" in run.of("a").cause
    run.sees("r-a-0", state="preempted")
    assert requested(run.tick(10)) == ["r-a-1"]
    run.feed(Spending(run.now_s, Decimal(0), Decimal("0.24")))
    assert not run.state.stop_status


def test_two_vms_in_a_slot_violate_invariants_unless_the_older_was_announced():
    run = noticed()
    run.tick(2)
    a = run.of("a")
    for broken in (replace(a, notice_at_s=None), replace(a, ending=a.vm)):
        with pytest.raises(InvariantError):
            validate(replace(run.state, slots=(broken, run.of("b"))))


def test_a_journal_of_an_earlier_version_continues():
    """There a noticed VM stayed its slot's own."""
    run = Driver(spec()).train()
    old = replace(run.of("a"), notice_at_s=150.0)
    run.state = replace(run.state, slots=(old, run.of("b")), index=None)
    run.tick()
    run.sees("r-a-0", phase="training", notice_at_s=150.0)
    assert run.of("a").ending == "r-a-0"
    assert requested(run.tick(5)) == ["r-a-1"]
