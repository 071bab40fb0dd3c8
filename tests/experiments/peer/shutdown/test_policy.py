"""When a peer leaves: notices, leases, the round it may still finish; accounting of pauses."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloud.storage.counter import ByteCounter
from cloud.storage.samples import Cursor
from experiments.peer.optimizer.swarm_optimizer import Round
from experiments.peer.processes import Departure
from experiments.peer.shutdown.policy import LEASE_EXPIRED, Grace, ShutdownPolicy, grace, round_fits
from experiments.peer.shutdown.preemption_notices import Notice
from experiments.peer.status import Status
from experiments.peer.training.loader import Loaded
from experiments.peer.training.loop import Hooks, Trainer
from metrics.records import EpochRecord

NOW_S = 1_000_000.0


@dataclass
class FakeDeparture:
    """Records how long this peer may stay."""

    stop: threading.Event
    soft_left_s: float = math.inf
    limit_s: float = math.inf
    code: int = 0

    def leave(self, soft_s: float, limit_s: float, *, code: int = 0, at_once: bool = True) -> None:
        self.soft_left_s, self.limit_s, self.code = soft_s, limit_s, code
        if at_once:
            self.stop.set()


class Rig:
    """A policy with the test's clock, lease and departure."""

    def __init__(self, folder: Path) -> None:
        self.now_s, self.until_s, self.stop = NOW_S, math.inf, threading.Event()
        self.status = Status(folder / "status.json")
        self.departure = FakeDeparture(self.stop)
        self.policy = ShutdownPolicy(
            self, cast(Departure, self.departure), self.status, self.stop, lambda: self.now_s
        )

    def lease_left_s(self) -> float:
        return self.until_s - self.now_s

    def fields(self) -> dict[str, Any]:
        return self.status._fields


def test_notice_two_minutes_ahead_allows_twenty_seconds_with_four_reserved() -> None:
    assert grace(NOW_S + 120.0, NOW_S) == Grace(16.0, 20.0)


@given(st.floats(-1e6, 1e6))
def test_grace_never_exceeds_the_vm_lifetime_or_twenty_seconds(left_s: float) -> None:
    given_s = grace(NOW_S + left_s, NOW_S)
    assert 0.0 < given_s.soft_s < given_s.limit_s <= 20.0
    assert given_s.limit_s <= max(1.0, left_s - 1.0) + 1e-6  # of the clock


@given(st.floats(0, 100), st.floats(0, 100), st.floats(-1, 20))
def test_round_is_finished_only_if_it_fits(eta_s: float, round_s: float, left_s: float) -> None:
    assert round_fits(eta_s, round_s, left_s) == (eta_s + round_s < left_s)
    assert not round_fits(None, round_s, left_s)
    assert not round_fits(eta_s, None, left_s)
    assert not round_fits(math.inf, round_s, left_s)


@given(st.floats(0, 100), st.floats(0, 100), st.floats(-1, 20))
def test_remainder_of_a_running_round_has_to_fit(gone_s: float, round_s: float, left_s: float) -> None:
    least_s = 2.0 if gone_s > 0.1 else 0.0
    assert round_fits(-gone_s, round_s, left_s) == (max(least_s, round_s - gone_s) < left_s)


def test_hidden_round_that_takes_too_long_is_left_in_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.policy.train(lambda: -40.0)
    rig.policy.round_ended(30.0)
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    rig.departure.soft_left_s = 2.1
    rig.policy.check()
    assert not rig.stop.is_set()
    rig.departure.soft_left_s = 1.9
    rig.policy.check()
    assert rig.stop.is_set()


def test_hidden_round_that_is_nearly_over_is_applied_before_leaving(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.policy.train(lambda: -28.0)
    rig.policy.round_ended(30.0)
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    assert not rig.stop.is_set()
    rig.policy.round_ended(30.0)
    assert rig.stop.is_set()


def test_a_notice_before_training_ends_the_peer_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    assert rig.stop.is_set()
    assert (rig.fields()["phase"], rig.fields()["notice_at_s"]) == ("leaving", NOW_S + 120.0)
    assert (rig.departure.limit_s, rig.departure.code) == (20.0, 0)
    assert rig.policy.urgent


@pytest.mark.parametrize("off_s", [-3600.0, -700.0, 700.0, 3600.0])
def test_notice_on_a_machine_with_a_wrong_clock_leaves_time_to_shut_down(
    tmp_path: Path, off_s: float
) -> None:
    rig = Rig(tmp_path)
    rig.now_s = NOW_S + off_s
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))  # by the cloud's clock
    assert rig.departure.limit_s == 20.0
    assert NOW_S + off_s + 20.0 < rig.fields()["notice_at_s"] <= NOW_S + off_s + 900.0


def test_notice_is_reported_in_swarm_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    policy = ShutdownPolicy(
        rig, cast(Departure, rig.departure), rig.status, rig.stop, lambda: NOW_S, lambda: -700.0
    )  # this machine is ahead
    policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    assert rig.fields()["notice_at_s"] == NOW_S - 580.0
    assert rig.departure.limit_s == 20.0


def test_an_epoch_that_ends_soon_is_finished_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    eta_s = [5.0]
    rig.policy.train(lambda: eta_s[0])
    rig.policy.round_ended(3.0)
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    assert not rig.policy.check()
    assert not rig.stop.is_set()
    rig.policy.round_ended(3.0)
    assert rig.stop.is_set()


def test_an_epoch_that_turns_out_longer_is_given_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    eta_s = [5.0]
    rig.policy.train(lambda: eta_s[0])
    rig.policy.round_ended(3.0)
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    assert not rig.stop.is_set()
    eta_s[0] = 14.0
    rig.policy.check()
    assert rig.stop.is_set()


def test_expired_lease_ends_the_peer_within_seconds(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.until_s = NOW_S + 10.0
    assert not rig.policy.check()
    rig.now_s += 9.9
    assert not rig.policy.check()
    assert not rig.stop.is_set()
    rig.now_s += 0.2
    assert rig.policy.check()
    assert rig.stop.is_set()
    assert (rig.fields()["phase"], rig.fields()["error"]) == ("leaving", "lease expired")
    assert rig.departure.code == LEASE_EXPIRED == 3
    assert rig.departure.limit_s <= 5.0


def test_renewed_lease_does_not_end_the_peer(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for _ in range(100):
        rig.until_s = rig.now_s + 10.0
        rig.now_s += 9.0
        assert not rig.policy.check()
    assert not rig.stop.is_set()


@pytest.mark.parametrize("phase", ["done", "failed"])
def test_a_peer_that_is_done_stays_done(tmp_path: Path, phase: str) -> None:
    rig = Rig(tmp_path)
    rig.status.set(phase=phase)
    rig.policy.on_notice(Notice(NOW_S + 120.0, "terminate"))
    assert (rig.fields()["phase"], rig.fields()["notice_at_s"]) == (phase, NOW_S + 120.0)
    assert rig.stop.is_set()


class FakeOptimizer:
    """Averages every third step; records whether it was held."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.local_epoch = self.steps = 0
        self.on_step, self.held = on_step, list[bool]()
        self.round_scheduled = False
        self.on_round_begins: Callable[[], None] | None = None
        self.tracker = SimpleNamespace(performance_ema=SimpleNamespace(reset_timer=lambda: None))
        self._round = Round()

    def step(self, batch_size: int) -> None:
        self.steps += 1
        self._round = Round()
        if self.steps % 3 == 0:
            assert self.on_round_begins is not None
            self.on_round_begins()
            self.local_epoch, self._round = self.local_epoch + 1, Round(group_size=1)
        self.on_step(self.steps)

    def take_round(self) -> Round:
        return self._round

    def prepare_round(self) -> None:
        assert not self.held or not self.held[-1]  # not in a pause

    def hold(self, held: bool) -> None:
        self.held.append(held)


def trainer_of(
    optimizer: FakeOptimizer, stop: threading.Event, paused: Callable[[], bool], epochs: list[EpochRecord]
) -> Trainer:
    weight = torch.nn.Parameter(torch.zeros(1))
    task = SimpleNamespace(
        move=lambda batch: batch, loss=lambda _: (weight * weight).sum(), backward=torch.Tensor.backward,
        check_loss=lambda *_: True, wait=lambda: None, ran="toy",
    )  # fmt: skip
    config = SimpleNamespace(
        max_epochs=3,
        samples_limit=None,
        vm="r-a-0",
        coalesce=1,
        batch_size=4,
        samples_per_step=4,
        forward_s=0.0,
        backward_s=0.0,
    )
    hooks = Hooks(lambda _: None, lambda e, *_: epochs.append(e), lambda: [], lambda *_: 0, lambda: None)
    batches = SimpleNamespace(next=lambda _: Loaded((torch.zeros(4), torch.zeros(4)), (), Cursor()))
    return Trainer(
        cast(Any, config), cast(Any, task), cast(Any, optimizer), cast(Any, batches), dict, ByteCounter(),
        hooks, stop, paused=paused,
    )  # fmt: skip


def test_no_step_runs_in_a_pause_and_its_time_is_not_counted() -> None:
    """A pause after the fourth step, which ends after three checks."""
    looks = [0]

    def paused() -> bool:
        if optimizer.steps != 4:
            return False
        looks[0] += 1
        return looks[0] <= 3

    epochs: list[EpochRecord] = []
    optimizer = FakeOptimizer(lambda _: None)
    assert trainer_of(optimizer, threading.Event(), paused, epochs).run()
    assert [e.steps for e in epochs] == [3, 3, 3]
    assert [e.samples for e in epochs] == [12, 12, 12]
    assert optimizer.held == [True, True, False]
    wall_s = [e.ended_s - e.began_s for e in epochs]
    worked_s = [e.calc_s + e.comm_s for e in epochs]
    assert wall_s[1] - worked_s[1] > 1.9  # two waits of a second
    assert wall_s[0] == pytest.approx(worked_s[0], abs=1e-5)
    assert wall_s[2] == pytest.approx(worked_s[2], abs=1e-5)
    assert epochs[2].began_s == epochs[1].ended_s


def test_stop_works_in_a_pause() -> None:
    stop = threading.Event()
    optimizer = FakeOptimizer(lambda _: None)
    threading.Timer(0.2, stop.set).start()
    assert not trainer_of(optimizer, stop, lambda: True, []).run()
    assert optimizer.steps == 0


def test_round_is_finished_before_a_pause() -> None:
    stop = threading.Event()

    def stepped(number: int) -> None:
        optimizer.round_scheduled = number < 3  # until the round is over
        if number == 3:
            threading.Timer(0.2, stop.set).start()

    optimizer = FakeOptimizer(stepped)
    optimizer.round_scheduled = True
    epochs: list[EpochRecord] = []
    assert not trainer_of(optimizer, stop, lambda: True, epochs).run()
    assert [e.epoch for e in epochs] == [1]
    assert optimizer.steps == 3
