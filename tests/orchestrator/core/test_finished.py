"""Peers that are lost after the last epoch, before they could report that they are done."""

import pytest

from orchestrator.core.events import Event, Finished, Missing, Observed, RequestVm, Silent, TerminateVm
from orchestrator.core.finished import finished, lost_vms
from orchestrator.core.state import SlotState
from tests.orchestrator.core.test_machine import spec, swarm_rows
from tests.orchestrator.core_driver import Driver

A, B = "r-a-0", "r-b-0"


def lose(driver: Driver, event: Event, trained_last: set[str], complete: bool) -> list[str]:
    """Feed a loss as the controller does; returns the VMs that are requested within two minutes."""
    for one in finished(driver.state, lost_vms([event]), trained_last, complete, driver.now_s):
        driver.feed(one)
    driver.feed(event)
    made = [instruction for _ in range(12) for instruction in driver.tick(10.0)]
    return [instruction.vm for instruction in made if isinstance(instruction, RequestVm)]


@pytest.mark.parametrize(
    "event",
    [
        Observed(100.0, A, "preempted", "training"),
        Observed(100.0, A, "failed", "training", cause="exit code 137"),
        Observed(100.0, A, "terminated"),
        Observed(100.0, A, "running", "leaving", notice_at_s=130.0),
        Missing(100.0, A),
    ],
)
def test_a_peer_lost_after_the_last_epoch_is_not_replaced(event: Event):
    driver = Driver(spec()).train()
    assert lose(driver, event, {A, B}, complete=True) == []
    assert driver.of("a").state is SlotState.DONE
    assert driver.of("a").lost == 0
    assert swarm_rows(driver) == []


def test_the_last_one_is_replaced_unless_all_is_in_the_store():
    for complete, requests in ((True, False), (False, True)):
        driver = Driver(spec()).train()
        driver.sees(B, "preempted")
        assert bool(lose(driver, Observed(100.0, A, "preempted"), {A}, complete)) is requests
        assert (driver.state.stop_status == "done") is complete
        assert bool(swarm_rows(driver)) is not complete


def test_a_silent_vm_that_trained_the_last_epoch_is_terminated_and_not_replaced():
    driver = Driver(spec()).train()
    silent = Silent(driver.now_s, A, 130.0)
    assert finished(driver.state, lost_vms([silent]), {A, B}, True, driver.now_s) == []
    driver.feed(silent)
    assert [i.vm for i in driver.tick() if isinstance(i, TerminateVm)] == [A]
    (event,) = finished(driver.state, (), {A, B}, True, driver.now_s)
    driver.feed(event)
    assert driver.of("a").state is SlotState.DONE
    made = [i for _ in range(20) for i in (*driver.sees(A, "running", "training"), *driver.tick(30.0))]
    assert [i for i in made if isinstance(i, RequestVm)] == []
    assert [i.vm for i in made if isinstance(i, TerminateVm)].count(A) >= 1  # again, until it is gone


def test_peers_lost_one_after_the_other_before_the_last_checkpoint_are_replaced():
    """The second one may have been about to store it: both are replaced, from the newest checkpoint."""
    driver = Driver(spec()).train()
    requested = lose(driver, Observed(driver.now_s, A, "preempted"), {A, B}, complete=False)
    requested += lose(driver, Observed(driver.now_s, B, "preempted"), {A, B}, complete=False)
    assert "r-a-1" in requested
    assert len(swarm_rows(driver)) == 1


def test_peers_lost_together_do_not_count_as_left():
    driver = Driver(spec()).train()
    assert finished(driver.state, {A, B}, {A, B}, False, driver.now_s) == []
    assert finished(driver.state, {A}, {A}, False, driver.now_s) == []  # b is not there yet
    both = [Finished(driver.now_s, vm, slot) for vm, slot in ((A, "a"), (B, "b"))]
    assert finished(driver.state, {A, B}, {A, B}, True, driver.now_s) == both


def test_a_record_read_after_the_loss_ends_the_wait_for_a_replacement():
    driver = Driver(spec()).train()
    driver.sees(A, "preempted")
    assert driver.of("a").state is SlotState.WAITING
    (event,) = finished(driver.state, (), {A, B}, True, driver.now_s)
    driver.feed(event)
    assert driver.of("a").state is SlotState.DONE
    assert [i for _ in range(9) for i in driver.tick(10.0) if isinstance(i, RequestVm)] == []


def test_a_peer_that_reports_an_error_failed_and_others_are_lost():
    driver = Driver(spec()).train()
    assert lost_vms([Observed(1.0, A, "running", "failed"), Observed(1.0, B, "running", "training")]) == set()
    assert lose(driver, Observed(100.0, A, "preempted"), {B}, True)[0] == "r-a-1"
