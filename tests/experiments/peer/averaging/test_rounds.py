"""Leaving with a prepared round, waiting for attempts, and progress reports in a pause."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hivemind.averaging.control import AveragingStage
from hivemind.optim.progress_tracker import LocalTrainingProgress

from experiments.peer.averaging.rounds import NoGroupError, end_attempt, result_of
from experiments.peer.optimizer.progress_tracker import PunctualTracker
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer


class Control:
    """A scheduled round; `error` is what its result raises."""

    def __init__(
        self, stage: AveragingStage, triggered: bool = False, error: Exception | None = None
    ) -> None:
        self.stage, self.triggered, self.error = stage, triggered, error
        self.weight, self.did = 1.0, list[str]()

    def done(self) -> bool:
        return self.stage is AveragingStage.FINISHED

    def cancel(self) -> None:
        self.did.append("cancel")

    def allow_allreduce(self) -> None:
        self.did.append(f"allow with weight {self.weight:g}")

    def result(self, timeout_s: float) -> None:
        self.did.append(f"wait {timeout_s:g} s")
        if self.error:
            raise self.error


def leave(control: Control | None) -> list[str]:
    optimizer = SimpleNamespace(scheduled_grads=control, withdraw_update=lambda: None)
    SwarmOptimizer.leave_round(cast(Any, optimizer), 7.0)
    assert optimizer.scheduled_grads is None
    return control.did if control is not None else []


def test_leave_without_a_round_returns_at_once() -> None:
    assert leave(None) == []
    assert leave(Control(AveragingStage.FINISHED)) == []


def test_round_without_a_group_is_cancelled() -> None:
    assert leave(Control(AveragingStage.LOOKING_FOR_GROUP)) == ["cancel"]


def test_leaving_peer_finishes_its_group_with_weight_0() -> None:
    assert leave(Control(AveragingStage.AWAITING_TRIGGER)) == ["allow with weight 0", "wait 7 s"]


def test_running_round_is_awaited() -> None:
    assert leave(Control(AveragingStage.RUNNING_ALLREDUCE, triggered=True)) == ["wait 7 s"]


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("the averager's process is gone")])
def test_failing_round_does_not_keep_the_peer(error: Exception) -> None:
    assert leave(Control(AveragingStage.RUNNING_ALLREDUCE, True, error)) == ["wait 7 s"]


class Clock:
    """A clock that advances while a control is awaited."""

    now = 0.0


class Slow(Control):
    """An attempt that finds a group and ends at the given times, or never."""

    def __init__(self, clock: Clock, group_s: float = 1e9, end_s: float = 1e9) -> None:
        super().__init__(AveragingStage.LOOKING_FOR_GROUP, triggered=True)
        self._clock, self._group_s, self._end_s = clock, group_s, end_s

    def result(self, timeout_s: float) -> str:
        assert timeout_s > 0.0
        end_s = min(self._clock.now + timeout_s, self._end_s)
        self._clock.now = max(self._clock.now, end_s)
        if self._clock.now >= self._group_s:
            self.stage = AveragingStage.RUNNING_ALLREDUCE
        if end_s < self._end_s:
            raise FutureTimeoutError
        return f"after {self._clock.now:g} s"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("experiments.peer.averaging.rounds.time.monotonic", lambda: clock.now)
    return clock


def wait(control: Slow, left_s: float, went_on_s: float = 1e9) -> Any:
    clock = control._clock
    return result_of(cast(Any, control), left_s, 5.0, lambda: clock.now >= went_on_s)


def test_running_all_reduce_may_use_all_remaining_time(clock: Clock) -> None:
    assert wait(Slow(clock, group_s=4.0, end_s=55.0), 60.0) == "after 55 s"


@pytest.mark.parametrize(("left_s", "after_s"), [(60.0, 15.0), (12.0, 12.0)])
def test_matchmaking_is_limited_to_three_matchmaking_times(
    clock: Clock, left_s: float, after_s: float
) -> None:
    with pytest.raises(NoGroupError, match=f"no group within {after_s:g} s"):
        wait(Slow(clock), left_s)
    assert clock.now == after_s


def test_matchmaking_ends_when_the_others_have_advanced(clock: Clock) -> None:
    with pytest.raises(NoGroupError, match="without this peer"):
        wait(Slow(clock), 60.0, went_on_s=3.0)
    assert clock.now == 5.0


def test_endless_all_reduce_is_awaited_until_the_timeout(clock: Clock) -> None:
    with pytest.raises(FutureTimeoutError):
        wait(Slow(clock, group_s=2.0), 60.0)
    assert clock.now == 60.0


@pytest.mark.parametrize(
    ("stage", "did"),
    [
        (AveragingStage.FINISHED, []),
        (AveragingStage.LOOKING_FOR_GROUP, ["cancel"]),
        (AveragingStage.AWAITING_TRIGGER, ["cancel"]),
        (AveragingStage.RUNNING_ALLREDUCE, ["give up", "wait 5 s"]),
    ],
)
def test_failed_attempt_is_ended(stage: AveragingStage, did: list[str]) -> None:
    control = Control(stage, triggered=True, error=RuntimeError("given up"))
    end_attempt(cast(Any, control), SimpleNamespace(give_up=lambda: control.did.append("give up")))
    assert control.did == did


class Tracker(PunctualTracker):
    """A tracker without a thread and a DHT."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


def test_a_held_peer_reports_its_samples_with_the_rate_0() -> None:
    reports: list[LocalTrainingProgress] = []
    tracker = Tracker()
    known: dict[str, Any] = {
        "dht": SimpleNamespace(peer_id=SimpleNamespace(to_bytes=lambda: b"me")),
        "performance_ema": SimpleNamespace(samples_per_second=40.0, reset_timer=lambda: None),
        "client_mode": False,
        "global_progress": SimpleNamespace(epoch=3, samples_accumulated=500),
        "should_report_progress": SimpleNamespace(set=lambda: reports.append(tracker.local_progress)),
        "_report_now": threading.Event(),
    }
    for name, value in known.items():
        setattr(tracker, name, value)
    tracker.local_progress = tracker._get_local_progress(3, 128)
    assert tracker.local_progress.samples_per_second == 40.0
    tracker.hold(True)
    tracker.hold(True)
    tracker.hold(False)
    found = [(p.epoch, p.samples_accumulated, p.samples_per_second) for p in reports]
    assert found == [(3, 128, 0.0), (3, 128, 0.0), (3, 128, 40.0)]
    assert tracker.global_progress.samples_accumulated == 500  # nothing counts twice


class Stores:
    """A DHT whose stores succeed or fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.values: list[object] = []
        self.waited: list[float] = []
        self.error = error

    def store(self, key: str, *, subkey: bytes, value: object, expiration_time: float, return_future: bool):
        self.values.append((key, subkey, value))
        return self

    def result(self, timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        if self.error:
            raise self.error
        return True


@pytest.mark.parametrize("error", [None, TimeoutError(), BrokenPipeError()])
def test_withdrawal_of_progress_is_awaited_once(error: Exception | None) -> None:
    tracker, dht = Tracker(), Stores(error)
    events = (
        "shutdown_triggered",
        "should_report_progress",
        "_report_now",
        "global_state_updated",
        "shutdown_complete",
    )
    for name in events:
        setattr(tracker, name, threading.Event())
    tracker.shutdown_complete.set()
    known: dict[str, Any] = {
        "dht": dht,
        "training_progress_key": "run_progress",
        "_local_public_key": b"me",
        "metadata_expiration": 30.0,
    }
    for name, value in known.items():
        setattr(tracker, name, value)
    tracker.shutdown(1.5)
    tracker.shutdown(1.5)
    assert tracker.shutdown_triggered.is_set()
    assert set(dht.values) == {("run_progress", b"me", None)}
    assert dht.waited == [1.5]
