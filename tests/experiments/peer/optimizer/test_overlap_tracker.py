"""The swarm's progress as seen by a peer with an overlapped round: its real tracker, without its thread."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.optimizer.progress_tracker import PunctualTracker


def tracker_of(own_sps: float, **others: float) -> Any:
    """A real tracker without its thread; `others`: reported rates by peer id."""
    tracker: Any = object.__new__(PunctualTracker)
    known: dict[str, Any] = {
        "dht": SimpleNamespace(peer_id=SimpleNamespace(to_bytes=lambda: b"me")), "is_alive": lambda: False,
        "performance_ema": SimpleNamespace(samples_per_second=own_sps, num_updates=3),
        "global_progress": SimpleNamespace(epoch=5, samples_accumulated=70, next_fetch_time=1e12),
        "local_progress": SimpleNamespace(samples_accumulated=0), "min_refresh_period": 0.5, "client_mode": False,
        "should_report_progress": threading.Event(), "_report_now": threading.Event(), "global_state_updated": threading.Event(),
        "fetched_global_progress_this_epoch": threading.Event(), "lock_global_progress": threading.Lock(),
        "_rates": {name.encode(): sps for name, sps in others.items()},
    }  # fmt: skip
    for name, value in known.items():
        setattr(tracker, name, value)
    return tracker


def test_share_of_a_peer_follows_its_rate() -> None:
    assert tracker_of(10.0).part is None
    assert tracker_of(10.0, me=99.0, a=20.0, b=10.0).part == 0.25


def test_credit_is_reported_at_once_and_the_others_are_fetched() -> None:
    tracker = tracker_of(10.0, a=20.0)
    tracker._get_local_progress = lambda epoch, samples: (epoch, samples)
    tracker.credit(5, 30)
    assert (tracker.local_progress, tracker.global_progress.samples_accumulated) == ((5, 30), 100)
    assert tracker.should_report_progress.is_set()
    assert tracker.global_state_updated.is_set()
    assert tracker.global_progress.next_fetch_time - get_dht_time() < 1.0
    tracker.credit(4, 30)  # the swarm is ahead: none of its epoch's
    assert tracker.global_progress.samples_accumulated == 100


def test_credited_samples_are_counted_once() -> None:
    tracker = tracker_of(10.0, a=20.0)
    tracker.performance_ema.reset_timer = lambda: None
    tracker._get_local_progress = lambda epoch, n: SimpleNamespace(epoch=epoch, samples_accumulated=n)
    tracker.local_progress = tracker._get_local_progress(5, 40)
    tracker.report_epoch(6)
    assert tracker.should_report_progress.is_set()
    assert (tracker.local_progress.epoch, tracker.local_progress.samples_accumulated) == (6, 0)
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == (5, 70)
    with tracker.lock_global_progress:
        tracker.update_epoch(6)
        tracker.credit(6, 30)
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == (6, 30)


def test_estimate_is_the_start_of_the_overlapped_round() -> None:
    tracker = tracker_of(10.0)
    tracker.global_progress.eta_next_epoch = 1e12
    tracker.target_batch_size = 100
    tracker.local_progress.epoch = 5
    assert tracker.estimated_next_update_time == 1e12
    tracker.round_begins(20.0)
    began = tracker.estimated_next_update_time
    assert 0.0 <= get_dht_time() - began < 10.0
    time.sleep(0.01)
    assert tracker.estimated_next_update_time == began
    tracker.round_ends()
    assert tracker.estimated_next_update_time == 1e12


class SlowDht:
    """Returns nothing, after a delay, and counts the queries."""

    peer_id, client_mode = SimpleNamespace(to_bytes=lambda: b"me"), False

    def __init__(self) -> None:
        self.begun = 0

    def add_validators(self, _: Any) -> None: ...

    def store(self, *_: Any, **__: Any) -> Any:
        return asyncio.sleep(0.0)

    def get(self, *_: Any, return_future: bool = False, **__: Any) -> Any:
        if not return_future:
            return None
        self.begun += 1
        return asyncio.sleep(0.05)


def test_no_fetch_delays_the_update() -> None:
    dht: Any = SlowDht()
    tracker = PunctualTracker(
        dht=dht, prefix="run", target_batch_size=100, min_refresh_period=0.01, max_refresh_period=0.02,
        default_refresh_period=0.02, start=False,
    )  # fmt: skip

    def train() -> None:
        while not dht.begun:
            time.sleep(0.01)
        with tracker.lock_global_progress:
            tracker.round_begins(600.0)
            begun = dht.begun
            time.sleep(0.2)  # the round; fetches are due
        time.sleep(0.1)  # the rest of a step
        with tracker.pause_updates():
            assert dht.begun == begun
        tracker.round_ends()
        while dht.begun == begun:
            time.sleep(0.01)

    async def fetch_beside() -> None:
        fetching = asyncio.create_task(tracker._progress_fetcher())
        try:
            await asyncio.to_thread(train)
        finally:
            tracker.shutdown_triggered.set()
            tracker.global_state_updated.set()
            await fetching

    asyncio.run(fetch_beside())
