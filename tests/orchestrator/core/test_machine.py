"""The slot state machine, event by event: states, facts, instructions."""

from dataclasses import replace
from decimal import Decimal

import pytest

from metrics.records import CHECKPOINT_STORED, SWARM_LOST
from orchestrator.core.events import (
    MONITOR,
    Checkpoint,
    EndRun,
    Observed,
    OfferRefused,
    Requested,
    RequestVm,
    RunComplete,
    Silent,
    Spending,
    StartMonitor,
    StopWanted,
    TerminateVm,
)
from orchestrator.core.invariants import InvariantError, validate
from orchestrator.core.journal import RUN_ENDED
from orchestrator.core.policy import back_off_s, first_place, next_place
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from tests.orchestrator.core_driver import Driver

IOWA = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("0.18"), "book")
BELGIUM = Place("gcp/europe-west1/europe-west1-b", "n1", "T4:1", True, Decimal("0.12"), "book")
TAIWAN = Place("gcp/asia-east1/asia-east1-a", "n1", "T4:1", True, Decimal("0.30"), "book")
UNPRICED = replace(TAIWAN, usd_per_h=None, price_source="unknown")


def spec(**policy) -> RunSpec:
    slot = SlotSpec("a", (IOWA, BELGIUM, TAIWAN), Policy(**policy))
    return RunSpec("r", (slot, replace(slot, name="b")), budget_usd=Decimal(5))


def test_first_peer_is_requested_alone_until_its_address_is_known():
    run = Driver(spec())
    assert run.tick() == [RequestVm("r-a-0", "a", 0, 0, ())]
    assert run.facts[0].kind == "intent"
    run.feed(Requested(run.now_s, "r-a-0"))
    assert run.tick() == []
    run.sees("r-a-0", phase="starting")
    assert run.of("a").state is SlotState.JOINING
    assert run.tick() == []
    run.sees("r-a-0", phase="dht", maddr="/a")
    assert run.tick() == [RequestVm("r-b-0", "b", 0, 0, ("/a",)), StartMonitor(MONITOR, ("/a",))]


def test_a_request_is_repeated_until_it_is_confirmed():
    run = Driver(spec())
    run.tick()
    assert run.tick() == [RequestVm("r-a-0", "a", 0, 0, ())]
    run.sees("r-a-0", state="pending")
    assert run.of("a").state is SlotState.BOOTING
    assert run.tick() == []


def test_a_preempted_peer_is_replaced_by_the_next_generation_and_joins_those_alive():
    run = Driver(spec()).train()
    run.sees("r-a-0", state="preempted", cause="taken back")
    assert run.of("a").state is SlotState.WAITING
    assert run.tick(0.5) == []  # backing off for one second
    assert run.tick(1.0) == [RequestVm("r-a-1", "a", 1, 0, ("/ip4/10.0.0.3/tcp/1/p2p/B",))]


def test_a_silent_peer_is_ended_before_another_is_requested():
    run = Driver(spec()).train()
    run.feed(Silent(run.now_s, "r-b-0", 130))
    cause = "not seen in the DHT for 130 s; next at 00:01:43: us-central1-a at $0.18/h"
    assert run.tick(10) == [TerminateVm("r-b-0", cause)]
    run.sees("r-b-0", state="terminated")
    assert run.tick() == [RequestVm("r-b-1", "b", 1, 0, ("/ip4/10.0.0.2/tcp/1/p2p/A",))]


@pytest.mark.parametrize(
    ("replace_by", "place_after_loss"),
    [("same_place", 0), ("next_place", 1), ("cheapest_place", 1), ("any_place_up", 1), ("wait", 0)],
)
def test_the_policy_chooses_the_next_place(replace_by, place_after_loss):
    run = Driver(spec(replace=replace_by)).train()
    run.sees("r-a-0", state="preempted")
    assert run.of("a").place == place_after_loss


def test_policy_never_replaces_no_vm_and_the_others_continue():
    run = Driver(spec(replace="never")).train()
    run.sees("r-a-0", state="preempted")
    assert run.of("a").state is SlotState.FAILED
    assert not run.state.stop_status
    run.sees("r-b-0", state="preempted")
    assert run.state.stop_status == "failed"


def test_a_slot_fails_after_too_many_losses():
    run = Driver(spec(max_replacements=1)).train()
    run.sees("r-a-0", state="preempted")
    run.tick(5)
    run.sees("r-a-1", state="preempted")
    assert run.of("a").state is SlotState.FAILED
    assert "more than the 1 replacements" in run.of("a").cause


def test_no_capacity_tries_every_place_then_ends_the_run():
    run = Driver(spec(replace="next_place", max_refusals=3))
    places = []
    for _ in range(12):
        for made in run.tick(100):
            if isinstance(made, RequestVm):
                places.append((made.vm, made.place))
                run.feed(OfferRefused(run.now_s, made.vm, "no_capacity", "none there"))
    assert places[:3] == [("r-a-0", 0), ("r-a-1", 1), ("r-a-2", 2)]
    assert run.state.stop_status == "no_capacity"
    assert run.state.ended


def test_an_ambiguous_request_that_is_then_refused_is_ended_first():
    run = Driver(spec())
    run.tick()
    run.feed(OfferRefused(run.now_s, "r-a-0", "ambiguous", "no answer in 60 s"))
    assert run.of("a").vm == "r-a-0"  # the same name is asked for again, never a second one
    run.tick(100)
    run.feed(OfferRefused(run.now_s, "r-a-0", "no_capacity", "none there"))
    assert run.of("a").ending == "r-a-0"
    assert [i.vm for i in run.tick(100) if isinstance(i, TerminateVm)] == ["r-a-0"]
    assert run.of("a").vm == ""


@pytest.mark.parametrize("kind", ["credentials", "invalid"])
def test_permanent_refusals_stop_the_run(kind):
    run = Driver(spec())
    run.tick()
    run.feed(OfferRefused(run.now_s, "r-a-0", kind, "no permission"))
    assert (run.state.stop_status, run.state.stop_cause) == ("failed", "no permission")


def test_an_unrecoverable_failure_ends_the_run():
    run = Driver(spec()).train()
    why = "s3://digits/train-000001.tar: the tar ends at byte 7000"
    run.feed(Observed(run.now_s, "r-a-0", "running", "failed", cause=why, unrecoverable=True))
    assert (run.state.stop_status, run.state.stop_cause) == ("failed", why)
    assert run.of("a").vm != "r-a-1"


def test_a_stray_vm_is_terminated():
    run = Driver(spec()).train()
    assert run.sees("r-a-7") == [TerminateVm("r-a-7", "it belongs to no slot any more")]


def test_an_old_observation_changes_nothing():
    run = Driver(spec()).train()
    before = run.state
    run.sees("r-a-0", state="pending")
    run.sees("r-a-0", phase="dht", maddr="/ip4/10.0.0.2/tcp/1/p2p/A")
    assert run.state == before


def test_a_vm_that_never_boots_or_joins_is_replaced():
    run = Driver(replace(spec(), slots=spec().slots[:1]))
    run.tick()
    run.sees("r-a-0", state="pending")
    run.tick(301)
    assert run.of("a").ending == "r-a-0"
    run.sees("r-a-0", state="failed", ended=True)
    run.tick()
    run.sees("r-a-1", phase="starting")
    run.tick(301)
    assert "did not join" in run.of("a").cause


def test_the_run_ends_when_all_are_done_and_read():
    run = Driver(spec()).train()
    run.sees("r-a-0", phase="done")
    run.sees("r-b-0", phase="done")
    assert run.state.finishing_s is not None
    assert run.tick() == []
    run.feed(RunComplete(run.now_s))
    assert run.tick() == [
        TerminateVm("r-a-0", "the peer finished"),
        TerminateVm("r-b-0", "the peer finished"),
    ]
    run.sees("r-a-0", state="terminated")
    run.sees("r-b-0", state="terminated")
    assert run.tick() == [TerminateVm(MONITOR, "all epochs measured")]
    run.sees(MONITOR, state="terminated")
    assert run.tick() == [EndRun("done", "all epochs measured")]
    assert run.facts[-1].kind == "run_ended"


def test_the_drain_is_bounded_and_so_are_stragglers():
    run = Driver(spec()).train()
    run.sees("r-a-0", phase="done")
    run.tick(91)
    assert run.state.finishing_s is not None
    run.tick(16)
    assert run.state.stop_status == "done"


def test_the_run_stops_before_the_budget_is_exceeded():
    run = Driver(spec()).train()
    run.feed(Spending(run.now_s, Decimal("4.87"), Decimal(6)))  # 75 s of 6 USD an hour are 0.125
    assert not run.state.stop_status
    run.feed(Spending(run.now_s, Decimal("4.875"), Decimal(6)))
    assert run.state.stop_status == "budget"
    assert {type(i) for i in run.tick()} == {TerminateVm}


def test_an_unknown_price_stops_a_run_with_a_budget():
    for unknown in (Spending(1.0, None, Decimal(1)), Spending(1.0, Decimal(1), None)):
        run = Driver(spec())
        run.feed(unknown)
        assert "cannot be kept" in run.state.stop_cause
        run = Driver(replace(spec(), budget_usd=None))
        run.feed(unknown)
        assert not run.state.stop_status


def test_a_dead_monitor_is_started_again_under_the_next_name():
    run = Driver(spec()).train()
    run.sees(MONITOR, state="failed", cause="killed")
    assert run.facts[-1].cause == "the monitor died (killed): monitor-1 goes on"
    assert [i.vm for i in run.tick() if isinstance(i, StartMonitor)] == ["monitor-1"]
    run.sees(MONITOR, state="failed", cause="killed")  # the first one's end, said again
    run.sees("monitor-1")
    assert run.tick() == []
    assert run.state.monitor == "up"
    run.sees("monitor-1", phase="failed", cause="its disk is full")  # a program that gave up on a living VM
    assert run.sees("monitor-1") == [TerminateVm("monitor-1", "it belongs to no slot any more")]
    run.feed(StopWanted(run.now_s, "stopped", "the user"))
    run.sees("r-a-0", state="terminated")
    run.sees("r-b-0", state="terminated")
    assert run.tick() == [EndRun("stopped", "the user")]


def test_too_many_monitor_deaths_end_the_run():
    run = Driver(spec()).train()
    for number in range(spec().max_monitor_restarts + 1):
        assert not run.state.stop_status
        run.sees(run.state.monitor_vm())
        run.sees(run.state.monitor_vm(), state="failed", cause="killed")
        run.tick(60)
        assert number < spec().max_monitor_restarts or run.state.stop_status == "failed"
    assert "died 6 times (killed)" in run.state.stop_cause


def test_monitor_restarts_back_off():
    run = Driver(replace(spec(), monitor_backoff_s=4.0)).train()
    waits: list[float] = []
    for _ in range(3):
        run.sees(run.state.monitor_vm())
        run.sees(run.state.monitor_vm(), state="failed", cause="killed")
        waits.append(run.state.monitor_retry_at_s - run.now_s)
        run.tick(60)
    assert waits == [0.0, 4.0, 12.0]


def test_stopping_ends_every_vm_and_every_intent():
    run = Driver(spec())
    run.tick()
    run.feed(StopWanted(run.now_s, "stopped", "the user"))
    assert run.tick() == [TerminateVm("r-a-0", "the user")]
    run.sees("r-a-0", state="terminated")
    assert run.tick() == [EndRun("stopped", "the user")]


def test_back_off_doubles_to_its_maximum_within_the_jitter():
    policy = Policy(backoff_s=1, backoff_max_s=10)
    assert [back_off_s(policy, n, lambda: 1.0) for n in range(5)] == [1, 2, 4, 8, 10]
    assert back_off_s(policy, 5000, lambda: 0.0) == 5


def test_cheapest_place_first_and_unknown_price_last():
    slot = SlotSpec("a", (IOWA, BELGIUM, UNPRICED), Policy("cheapest_place"))
    assert first_place(slot) == 1
    assert [next_place(slot, 0, n, lambda _: (False, 0.0)) for n in range(4)] == [1, 0, 2, 1]


def test_invariants_notice_two_vms_in_a_slot():
    run = Driver(spec()).train()
    broken = replace(run.of("a"), ending="r-b-0")
    with pytest.raises(InvariantError, match="in two slots"):
        validate(replace(run.state, slots=(broken, run.of("b"))))
    ghost = replace(run.of("a"), generation=9, vm="r-a-9")
    with pytest.raises(InvariantError, match="without an intent"):
        validate(replace(run.state, slots=(ghost, run.of("b"))))


def swarm_rows(driver: Driver) -> list[str]:
    return [fact.cause for fact in driver.facts if fact.kind == SWARM_LOST]


def test_losing_every_peer_that_trained_is_journalled_once_and_at_once():
    driver = Driver(spec()).train()
    driver.sees("r-a-0", "preempted")
    assert swarm_rows(driver) == []
    driver.sees("r-b-0", "preempted")
    [cause] = swarm_rows(driver)
    assert cause.endswith("what was learned; training restarts at epoch 1")
    for _ in range(5):
        driver.tick()
    assert len(swarm_rows(driver)) == 1


def test_the_end_of_the_run_is_journalled_last():
    driver = Driver(spec(replace="never")).train()
    driver.state = replace(driver.state, monitor="absent")  # whose end would be waited for
    driver.sees("r-a-0", "preempted")
    driver.sees("r-b-0", "preempted")
    assert [fact.kind for fact in driver.facts[-2:]] == [SWARM_LOST, RUN_ENDED]


def test_a_peer_that_was_joining_may_have_the_state():
    driver = Driver(spec()).train()
    driver.sees("r-b-0", "preempted")
    driver.tick(100.0)
    driver.sees("r-b-1", phase="ready", maddr="/ip4/10.0.0.4/tcp/1/p2p/C")
    driver.sees("r-a-0", "preempted")
    [cause] = swarm_rows(driver)
    assert cause.endswith("unless one that was joining has loaded the state")
    driver.sees("r-b-1", phase="training")
    driver.sees("r-b-1", "preempted")
    assert len(swarm_rows(driver)) == 2


@pytest.mark.parametrize("how", ["stopped", "finished", "never trained"])
def test_peers_that_end_on_purpose_are_not_lost(how: str):
    driver = Driver(spec())
    if how == "never trained":
        driver.tick()
        driver.sees("r-a-0", phase="ready", maddr="/ip4/10.0.0.2/tcp/1/p2p/A")
        driver.sees("r-a-0", "preempted")
    else:
        driver.train()
    if how == "stopped":
        driver.feed(StopWanted(driver.now_s, "stopped", "asked to"))
    elif how == "finished":
        driver.sees("r-a-0", phase="done")
        driver.sees("r-b-0", "preempted")
    driver.tick()
    assert swarm_rows(driver) == []


def test_the_loss_of_all_peers_after_the_last_epoch_is_no_loss_of_training():
    driver = Driver(replace(spec(), epochs=41)).train()
    driver.feed(Checkpoint(driver.now_s, "r-a-0", CHECKPOINT_STORED, "e41", 41, "stored", "{}"))
    driver.sees("r-a-0", "preempted")
    driver.sees("r-b-0", "preempted")
    assert swarm_rows(driver) == [
        "every peer is lost after the last epoch, 41, of which a checkpoint is stored; a replacement only evaluates it"
    ]


def test_peers_seen_to_have_finished_only_after_their_vms_were_taken_back_are_not_lost():
    driver = Driver(spec()).train()
    notice_at_s = driver.now_s + 30.0
    driver.sees("r-a-0", "preempted", phase="done")
    driver.sees("r-b-0", phase="done", notice_at_s=notice_at_s)
    assert [driver.of(name).state for name in "ab"] == [SlotState.DONE, SlotState.DONE]
    driver.tick(60.0)
    assert (swarm_rows(driver), driver.of("a").lost) == ([], 0)
    assert driver.state.stop_status == "done"
    assert driver.state.intents == {"r-a-0", "r-b-0"}


def test_a_run_that_gives_up_with_its_last_peer_promises_no_next_one():
    driver = Driver(spec(replace="never")).train()
    driver.sees("r-a-0", "preempted")
    driver.sees("r-b-0", "preempted")
    assert driver.state.stop_status == "failed"
    assert swarm_rows(driver) == ["every peer that trained is lost, and with them what was learned"]
