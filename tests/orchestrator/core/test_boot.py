"""Deadlines of a booting VM: each reported step has its own."""

from decimal import Decimal

import pytest

from orchestrator.core.events import Requested
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState
from orchestrator.launch.rented import patient
from tests.orchestrator.core_driver import Driver


def booting() -> Driver:
    place = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("0.18"), "book")
    run = Driver(patient(RunSpec("r", (SlotSpec("a", (place,), Policy("next_place")),))))
    run.tick()
    run.feed(Requested(run.now_s, "r-a-0"))
    return run


def test_setup_and_install_have_their_own_deadlines():
    run = booting()
    for phase, for_s in (("", 1190), ("setup", 1250), ("installing", 1850)):
        for _ in range(for_s // 10):
            run.sees("r-a-0", "pending", phase)
            assert not run.tick(10), phase
    assert (run.of("a").vm, run.of("a").state, run.of("a").phase) == (
        "r-a-0",
        SlotState.BOOTING,
        "installing",
    )
    run.sees("r-a-0", phase="waiting")
    assert run.of("a").state is SlotState.JOINING


@pytest.mark.parametrize(("phase", "limit_s"), [("", 1200), ("setup", 1290), ("installing", 1920)])
def test_a_hanging_boot_step_is_ended_at_its_deadline(phase: str, limit_s: int):
    run = booting()
    run.tick(600)
    run.sees("r-a-0", "pending", phase)
    began_s = run.now_s if phase else run.now_s - 600
    while run.of("a").vm:
        run.sees("r-a-0", "pending", phase)
        run.tick(10)
        assert run.now_s < began_s + 2 * limit_s
    assert limit_s < run.now_s - began_s <= limit_s + 10
    said = f"did not boot within {limit_s} s" + (f" (its phase: {phase})" if phase else "")
    assert run.of("a").cause.startswith(said)


def test_repeated_boot_phases_do_not_extend_the_deadline():
    run = booting()
    began_s, phases = run.now_s, ("setup", "installing", "", "nonsense")
    for n in range(1000):
        run.sees("r-a-0", "pending", phases[n % 4])
        run.tick(10)
        if not run.of("a").vm:
            break
    assert run.now_s - began_s <= 1200 + 1290 + 1920 + 30
