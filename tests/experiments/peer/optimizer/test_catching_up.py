"""A peer with diverged weights notices in the middle of an epoch, without waiting for other peers."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.peer.optimizer.overlap import OverlappedOptimizer
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.state.catch_up import Offer


class Peer:
    """The data that `has_diverged` reads, at epoch 4, and the queries it made."""

    def __init__(self) -> None:
        self.local_epoch, self._asked, self._asked_at = 4, None, -1
        self.asked: list[Future[list[Offer]]] = []
        self.state_averager = SimpleNamespace(lineage="mine", ask=self._ask)
        self.tracker = SimpleNamespace(
            global_progress=SimpleNamespace(samples_accumulated=0, target_batch_size=100)
        )

    def _ask(self) -> Future[list[Offer]]:
        self.asked.append(Future())
        return self.asked[-1]

    def astray(self, samples: int) -> bool:
        self.tracker.global_progress.samples_accumulated = samples
        return SwarmOptimizer.has_diverged(cast(Any, self))


def offers(*lineages: str, epoch: int = 4) -> list[Offer]:
    return [Offer(f"peer {n}", 0.1, epoch, False, 0, lineage) for n, lineage in enumerate(lineages)]


def test_lineages_are_queried_once_per_epoch_in_its_middle() -> None:
    peer = Peer()
    assert not peer.astray(49)
    assert peer.asked == []
    assert not peer.astray(50)
    assert not peer.astray(60)
    peer.asked[0].set_result(offers("mine", "mine"))
    assert not peer.astray(70)
    assert not peer.astray(99)
    assert len(peer.asked) == 1
    peer.local_epoch = 5
    assert not peer.astray(50)
    assert len(peer.asked) == 2


def test_majority_with_other_weights_wins() -> None:
    for answer, astray in (
        (offers("theirs", "theirs"), True),
        (offers("theirs", "mine"), False),
        (offers("theirs"), True),  # of as many the greatest lineage
        (offers("a"), False),
        (offers("theirs", "theirs", epoch=3), False),  # they are late
        (offers("theirs", epoch=5), True),
        ([], False),
    ):
        peer = Peer()
        peer.astray(50)
        peer.asked[0].set_result(answer)
        assert peer.astray(60) is astray, answer


def test_response_about_the_previous_epoch_is_ignored() -> None:
    peer = Peer()
    peer.astray(50)
    peer.local_epoch = 5
    peer.asked[0].set_result(offers("theirs", "theirs"))
    assert not peer.astray(10)


@dataclass
class Donor:
    """The swarm at epoch 5, in a round until `at` is 7 seconds; this peer has the same weights."""

    at: float = 0.0
    epoch: int = 5
    lineage: str = "ours"

    def offers(self) -> list[Offer]:
        return [Offer("other", 0.1, 5, self.at < 7.0, 0, "ours")]

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def step(self, **_: Any) -> None: ...
    def say(self, **_: Any) -> None: ...


@pytest.mark.parametrize(
    ("kind", "joining", "until_s"),
    [(SwarmOptimizer, False, 0.0), (SwarmOptimizer, True, 7.0), (OverlappedOptimizer, False, 7.0)],
)
def test_late_peer_returns_between_rounds_if_it_is_not_awaited(
    kind: type[SwarmOptimizer], joining: bool, until_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor, nothing = Donor(), SimpleNamespace(reset_accumulated_grads_=lambda: None)
    clock = SimpleNamespace(monotonic=lambda: donor.at, sleep=donor.sleep)
    monkeypatch.setattr("experiments.peer.optimizer.swarm_optimizer.time", clock)
    tracker = SimpleNamespace(pause_updates=contextlib.nullcontext, update_epoch=lambda _: None)
    peer = SimpleNamespace(
        state_averager=donor, grad_averager=nothing, tracker=tracker, local_epoch=5, averaging_timeout=30.0,
        load_state_timeout=120.0, waits_for_rounds=kind.waits_for_rounds,
    )  # fmt: skip
    kind.catch_up(cast(Any, peer), joining)
    assert donor.at == until_s
