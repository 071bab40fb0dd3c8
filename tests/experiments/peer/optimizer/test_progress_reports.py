"""How often a peer reports its samples, and looks for a group: real methods, without threads and a DHT."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.optimizer import progress_tracker as module
from experiments.peer.optimizer.progress_tracker import PunctualTracker
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer


class Dht:
    """Keeps the stored reports."""

    peer_id, client_mode = SimpleNamespace(to_bytes=lambda: b"me"), False

    def __init__(self) -> None:
        self.reports: list[tuple[int, int]] = []  # (epoch, samples)

    def add_validators(self, _: Any) -> None: ...

    def get(self, *_: Any, **__: Any) -> None: ...

    def store(self, *_: Any, value: dict[str, Any] | None, **__: Any) -> Any:
        if value is not None:
            self.reports.append((value["epoch"], value["samples_accumulated"]))
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(True)
        return stored


class Pause(threading.Event):
    """The event that ends the pause between two reports. Instead of pausing, `wait` calls `train`."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []
        self.train = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            assert timeout is not None
            self.pauses_s.append(timeout)
            self.train()
        return True


def tracker_of(dht: Any) -> Any:
    tracker: Any = PunctualTracker(dht=dht, prefix="run", target_batch_size=1000, start=False)
    tracker._report_now = Pause()
    return tracker


def reported(tracker: Any, dht: Dht, *changes: Any) -> list[tuple[int, int]]:
    """Let the reporter run; make each change when the report of the one before is stored."""
    left = list(changes)

    def store(*args: Any, value: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        stored = Dht.store(dht, *args, value=value, **kwargs)
        if left:
            left.pop(0)()
        else:
            tracker.shutdown_triggered.set()
        return stored

    tracker.dht.store = store
    left.pop(0)()
    asyncio.run(tracker._progress_reporter())
    return dht.reports


def test_further_samples_are_reported_after_a_pause_in_which_others_may_come() -> None:
    dht = Dht()
    tracker = tracker_of(dht)
    tracker._report_now.train = lambda: tracker.report_local_progress(0, 96)
    steps = [lambda n=n: tracker.report_local_progress(0, n) for n in (32, 64)]
    assert reported(tracker, dht, *steps) == [(0, 32), (0, 96)]
    (pause_s,) = tracker._report_now.pauses_s
    assert 0.0 < pause_s <= 0.25


def test_a_peer_with_long_steps_reports_each_at_once() -> None:
    dht = Dht()
    tracker = tracker_of(dht)
    now = get_dht_time()
    clock = iter(range(1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "get_dht_time", lambda: now + next(clock))
        steps = [lambda n=n: tracker.report_local_progress(0, n) for n in (32, 64, 96)]
        assert reported(tracker, dht, *steps) == [(0, 32), (0, 64), (0, 96)]
    assert tracker._report_now.pauses_s == []


def test_a_peer_whose_epochs_are_shorter_than_the_pause_keeps_reporting() -> None:
    """Its samples of an epoch are never reported, only that the next one begins: it is alive nevertheless."""
    dht = Dht()
    tracker = tracker_of(dht)

    def an_epoch(number: int) -> None:
        for samples in (32, 64):
            tracker.report_local_progress(number, samples)
        with tracker.pause_updates():
            tracker.update_epoch(number + 1)

    epochs = [lambda n=n: an_epoch(n) for n in range(8)]
    assert reported(tracker, dht, *epochs) == [(n, 0) for n in range(1, 9)]


@pytest.mark.parametrize("what", ["epoch", "reset", "held", "overlapped", "credit", "first samples"])
def test_news_of_the_epoch_are_reported_at_once(what: str) -> None:
    dht = Dht()
    tracker = tracker_of(dht)

    def news() -> None:
        if what == "epoch":
            with tracker.pause_updates():
                tracker.update_epoch(1)
        elif what == "reset":
            tracker.report_local_progress(0, 0)
        elif what == "held":
            tracker.hold(True)
        elif what == "overlapped":
            tracker.report_epoch(1)
        elif what == "first samples":
            tracker.report_local_progress(0, 32)
        else:
            tracker.credit(1, 64)

    first = (0, 0) if what == "first samples" else (0, 32)
    tracker.report_local_progress(0, 1)  # a peer that never had samples does not report
    found = reported(tracker, dht, lambda: tracker.report_local_progress(*first), news)
    assert found[0] == first
    assert len(found) == 2
    assert tracker._report_now.pauses_s == []


@pytest.mark.parametrize(
    ("reporting", "announced", "scheduled"), [(0, 0, 0), (1, 0, 0), (2, 0, 1), (1, 1, 1), (0, 1, 1)]
)
def test_a_round_is_scheduled_early_only_if_another_peer_may_train(
    reporting: int, announced: int, scheduled: int
) -> None:
    """`reporting`: peers with a progress report, this one included; `announced`: other peers."""
    rounds: list[float] = []
    optimizer: Any = object.__new__(SwarmOptimizer)
    known: dict[str, Any] = {
        "_parent_pid": 0,
        "_others": SimpleNamespace(others_training=lambda epoch: announced),
        "state_averager": SimpleNamespace(local_epoch=3),
        "tracker": SimpleNamespace(
            estimated_next_update_time=get_dht_time(), global_progress=SimpleNamespace(num_peers=reporting)
        ),
        "grad_averager": SimpleNamespace(
            matchmaking_kwargs={"min_matchmaking_time": 1.5},
            schedule_step=lambda timeout: rounds.append(timeout),
        ),
        "scheduled_grads": None,
        "matchmaking_time": 1.5,
        "averaging_timeout": 20.0,
        "status_loglevel": 10,
    }
    optimizer.__dict__.update(known)
    optimizer._maybe_schedule_gradient_averaging()
    assert rounds == [20.0] * scheduled


@pytest.mark.parametrize("known", ["nobody", "reports", "announcements"])
@pytest.mark.parametrize("there", [False, True])
def test_a_peer_asks_before_it_steps_alone(known: str, there: bool) -> None:
    """Another peer that began to train after the last fetch is not left behind, in the first epochs of a swarm."""
    asked: list[float] = []
    progress = SimpleNamespace(num_peers=2 if known == "reports" else 1)
    steps: list[int] = []

    def ask(timeout_s: float) -> None:
        asked.append(timeout_s)
        progress.num_peers = 2 if there else 1

    tracker = SimpleNamespace(
        global_progress=progress, global_epoch=3, stale=False, ask=ask, pause_updates=contextlib.nullcontext
    )
    optimizer: Any = object.__new__(SwarmOptimizer)
    optimizer.__dict__ |= {
        "_parent_pid": 0,
        "_others": SimpleNamespace(others_training=lambda epoch: int(known == "announcements")),
        "state_averager": SimpleNamespace(local_epoch=3),
        "tracker": tracker,
        "progress": tracker,
        "round": SimpleNamespace(swarm_peers=0),
        "on_round_begins": None,
        "on_gradients_taken": None,
        "matchmaking_time": 1.5,
        "has_diverged": lambda: False,
        "round_begins": lambda: None,
        "_run_round": lambda scaler: steps.append(optimizer.round.swarm_peers),
    }
    optimizer._update_global_epoch(None)
    assert asked == ([1.5] if known == "nobody" else [])
    assert steps == [progress.num_peers]
