"""What a peer does about a round that was prepared when it goes, and what it tells the swarm in a pause."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hivemind.averaging.control import AveragingStage
from hivemind.optim.progress_tracker import LocalTrainingProgress

from experiments.peer.optimizer import SwarmOptimizer
from experiments.peer.tracker import PunctualTracker


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
    optimizer = SimpleNamespace(scheduled_grads=control)
    SwarmOptimizer.leave_round(cast(Any, optimizer), 7.0)
    assert optimizer.scheduled_grads is None
    return control.did if control is not None else []


def test_nothing_is_waited_for_without_a_round() -> None:
    assert leave(None) == []
    assert leave(Control(AveragingStage.FINISHED)) == []


def test_a_round_without_a_group_is_given_up() -> None:
    assert leave(Control(AveragingStage.LOOKING_FOR_GROUP)) == ["cancel"]


def test_a_group_gets_this_peers_part_with_weight_0() -> None:
    assert leave(Control(AveragingStage.AWAITING_TRIGGER)) == ["allow with weight 0", "wait 7 s"]


def test_a_round_that_runs_is_waited_for() -> None:
    assert leave(Control(AveragingStage.RUNNING_ALLREDUCE, triggered=True)) == ["wait 7 s"]


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("the averager's process is gone")])
def test_a_round_that_fails_keeps_nobody(error: Exception) -> None:
    assert leave(Control(AveragingStage.RUNNING_ALLREDUCE, True, error)) == ["wait 7 s"]


class Tracker(PunctualTracker):
    """Without a thread and a DHT."""

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
    }
    for name, value in known.items():
        setattr(tracker, name, value)
    tracker.local_progress = tracker._get_local_progress(3, 128)
    assert tracker.local_progress.samples_per_second == 40.0
    tracker.hold(True)
    tracker.hold(True)
    tracker.hold(False)
    said = [(p.epoch, p.samples_accumulated, p.samples_per_second) for p in reports]
    assert said == [(3, 128, 0.0), (3, 128, 0.0), (3, 128, 40.0)]
    assert tracker.global_progress.samples_accumulated == 500  # nothing counts twice


class Stores:
    """A DHT that takes what is stored, or fails."""

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
def test_a_goodbye_is_waited_for_once(error: Exception | None) -> None:
    tracker, dht = Tracker(), Stores(error)
    for name in ("shutdown_triggered", "should_report_progress", "global_state_updated", "shutdown_complete"):
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
