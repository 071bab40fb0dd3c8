"""Phases of the step clock add up to the wall time; padding affects only its own phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.training.step_timer import EpochTimes, Padding, StepClock
from metrics.records import PHASES, StepRecord

TIMED = [name for name in PHASES if name != "other"]


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def phases_of(step: StepRecord) -> dict[str, float]:
    return {name: getattr(step, f"{name}_s") for name in PHASES}


@given(st.lists(st.tuples(st.sampled_from(TIMED), st.floats(0, 10), st.floats(0, 1)), max_size=20))
def test_phases_add_up_to_the_wall_time(blocks) -> None:
    clock = FakeClock()
    steps = StepClock(clock, clock)
    for name, inside, outside in blocks:
        with steps.phase(name):
            clock.pass_(inside)
        clock.pass_(outside)
    step = steps.finish("vm", 0, 1)
    assert sum(phases_of(step).values()) == pytest.approx(step.wall_s)
    assert step.other_s == pytest.approx(sum(outside for _, _, outside in blocks), abs=1e-6)


def test_no_time_is_lost_between_steps() -> None:
    clock = FakeClock()
    steps = StepClock(clock, clock)
    clock.pass_(1.0)
    first = steps.finish("vm", 0, 1)
    clock.pass_(2.0)
    second = steps.finish("vm", 0, 1)
    assert (first.wall_s, second.wall_s, second.step) == (1.0, 2.0, 2)
    assert second.began_s == first.began_s + first.wall_s


def test_the_synchronising_step_charges_its_optimizer_time_to_sync() -> None:
    clock = FakeClock()
    steps = StepClock(clock, clock)
    with steps.phase("optimizer_local"):
        clock.pass_(5.0)
    steps.move_to_sync()
    step = steps.finish("vm", 0, 1)
    assert (step.optimizer_local_s, step.optimizer_sync_s) == (0.0, 5.0)


def test_phases_do_not_nest() -> None:
    steps = StepClock(FakeClock(), FakeClock())
    with steps.phase("forward"), pytest.raises(ValueError, match="count twice"), steps.phase("backward"):
        pass
    with pytest.raises(ValueError, match="not a phase"), steps.phase("other"):
        pass


def test_padding_fills_up_to_the_target_from_the_phase_s_own_beginning() -> None:
    clock = FakeClock()
    padding = Padding(clock, clock.pass_)
    with padding.to(0.5):
        clock.pass_(0.2)
    assert clock.now == pytest.approx(1000.5)
    with padding.to(0.5):
        clock.pass_(0.7)  # too slow: not made up for later
    with padding.to(0.5):
        pass
    assert clock.now == pytest.approx(1001.7)
    assert (padding.asked_s, padding.overrun_s) == pytest.approx((1.5, 0.2))
    assert padding.worst_s == pytest.approx(0.2)


def test_zero_seconds_mean_no_padding() -> None:
    clock = FakeClock()
    padding = Padding(clock, clock.pass_)
    with padding.to(0.0):
        clock.pass_(0.1)
    assert (clock.now, padding.asked_s) == (1000.1, 0.0)


def test_calculation_and_communication_add_up_to_the_epoch() -> None:
    clock = FakeClock()
    steps, epoch = StepClock(clock, clock), EpochTimes(0.0)
    for sync in (False, True):
        with steps.phase("forward"):
            clock.pass_(3.0)
        with steps.phase("optimizer_local"):
            clock.pass_(1.0)
        if sync:
            steps.move_to_sync()
        epoch.add(steps.finish("vm", 0, 16))
    assert (epoch.calc_s, epoch.comm_s, epoch.samples, epoch.steps) == (7.0, 1.0, 32, 2)
