"""A peer whose rounds overlap with calculation: real gradients and buffers, and a simulated swarm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from types import SimpleNamespace

import pytest
from hivemind.averaging.control import AveragingStage
from hypothesis import given, settings
from hypothesis import strategies as st
from overlap_rig import SHARE, OverlappedPeer
from peer_rig import config_of

from experiments.peer.averaging.rounds import Round
from experiments.peer.config import PeerConfigError
from experiments.peer.optimizer.build import _optimizer_of
from experiments.peer.optimizer.overlap import OverlappedOptimizer


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> OverlappedPeer:
    made = OverlappedPeer()
    monkeypatch.setattr(
        "experiments.peer.optimizer.swarm_optimizer.SwarmOptimizer.load_state_from_peers",
        lambda self, joining=False, **_: self.load_state(),
    )
    return made


def test_update_is_applied_during_calculation(peer: OverlappedPeer) -> None:
    began = peer.calculate(1, 2, 3, 4)  # its mean is 2.5, the swarm's 5
    assert began.blocked
    assert (peer.weight, peer.local_epoch, peer.round_scheduled) == (0.0, 0, True)
    done = peer.calculate(10, 20)
    assert (done, peer.weight, peer.local_epoch) == (Round(), 0.0, 0)
    peer.come_to("averaged")
    done = peer.calculate(30)
    assert (peer.weight, peer.local_epoch) == (-5.0, 1)
    assert (done.group_size, done.ahead, done.state_loads, done.losses) == (2, 3, 0, [])
    assert done.hidden_s > 0.0
    assert peer.tracker.reported == [(1, 3)]
    peer.calculate(40)  # the fourth sample: the next round, with what was calculated ahead
    peer.come_to("averaged")
    peer.calculate(7)
    assert (peer.weight, peer.local_epoch) == (-5.0 - 2.0 * 25.0, 2)


class Clock:
    """The optimizer's clock, advanced by the test and while a round is awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("experiments.peer.optimizer.overlap.time", self)

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter

    def waits(self, peer: OverlappedPeer, wait: Callable[[float], bool]) -> None:
        """Replace the waits for the round of `peer` by `wait`, which returns whether it ended."""

        def waited(seconds: float) -> bool:
            self.now_s += seconds
            return wait(seconds)

        assert peer._hidden is not None
        peer._hidden.wait = waited  # type: ignore[method-assign]


def test_the_last_step_of_an_epoch_waits_for_the_update(
    peer: OverlappedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    peer.calculate(1, 1, 1, 1)
    clock.now_s = 2.0
    peer.calculate(5, 5)
    clock.now_s = 3.0
    looks = iter([False, False, True])

    def ends_at_the_third_look(_: float) -> bool:
        over = next(looks)
        if over:
            peer.come_to("averaged")
        return over

    clock.waits(peer, ends_at_the_third_look)
    done = peer.calculate(5)
    assert (done.blocked, done.ahead, peer.local_epoch, peer.weight) == (True, 3, 1, -2.0)
    assert clock.now_s > 3.0
    assert done.hidden_s == 3.0  # waiting time is not hidden


def test_step_alone_when_no_other_peer_is_left(peer: OverlappedPeer) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.calculate(10)
    peer.come_to("alone")
    done = peer.calculate(10)
    assert (peer.weight, done.group_size, peer.tracker.reported) == (-2.5, 1, [(1, 2)])
    assert peer.state_averager.rounded == [[2.5]]  # as peers that download the update will receive it


def test_single_peer_runs_no_background_round(peer: OverlappedPeer) -> None:
    peer._others.training, peer.tracker.global_progress.num_peers = 0, 1
    peer._run_round = lambda _: setattr(peer, "ran", True) or setattr(peer.tracker, "samples", 0)  # type: ignore[method-assign]
    peer.calculate(1, 2, 3, 4)
    assert peer.__dict__["ran"]


def test_given_up_round_costs_only_its_gradients(peer: OverlappedPeer) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.calculate(10, 20)
    peer.come_to("given up")
    done = peer.calculate(30)
    assert (peer.weight, peer.local_epoch, done.group_size, done.ahead) == (0.0, 1, 1, 3)
    assert done.losses == ["round given up: gradients dropped (given up)"]
    peer.calculate(40)
    peer.come_to("averaged")
    peer.calculate(1)
    assert peer.weight == -2.0 * 25.0


@pytest.mark.parametrize("why", ["behind", "astray"])
def test_peer_behind_drops_both_gradients_and_announces_catching_up(peer: OverlappedPeer, why: str) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.calculate(10, 20)
    peer.is_out = why == "astray"
    peer.come_to("averaged" if peer.is_out else why)
    done = peer.calculate(30)
    peer.is_out = False
    assert (done.state_loads, done.ahead, peer.loads, peer.weight) == (1, 0, 1, 0.0)
    assert peer._others.said == ["ready 0", "training 0"]
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    peer.calculate(7)
    assert peer.weight == -2.0  # nothing of before is in it


def test_unexpected_error_is_raised_in_the_training_loop(peer: OverlappedPeer) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.come_to("fault")
    with pytest.raises(OSError, match="fault"):
        peer.calculate(1)


def test_newcomers_get_the_time_between_two_rounds(peer: OverlappedPeer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    peer.calculate(1)
    peer._others.coming = 1
    threading.Timer(0.2, peer._end.set).start()
    done = peer.calculate(1, 1, 1)  # its round begins and ends in the last of these
    assert (peer.local_epoch, done.ahead, done.hidden_s) == (2, 0, 0.0)


def test_next_round_is_scheduled_early_when_little_is_left(peer: OverlappedPeer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.calculate(1, 1)
    peer.come_to("averaged")
    peer.tracker.performance_ema.ema_seconds_per_sample = 0.0
    peer.calculate(1)  # three of four are here: the update
    assert peer.grad_averager.scheduled == []
    peer.prepare_round()
    assert peer.grad_averager.scheduled == [30.0]
    peer.prepare_round()
    assert peer.grad_averager.scheduled == [30.0]


def test_next_round_is_not_scheduled_early_when_much_is_left(peer: OverlappedPeer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    peer.calculate(1)
    peer.tracker.performance_ema.samples_per_second = 0.1
    peer.prepare_round()
    assert peer.grad_averager.scheduled == []


def test_share_of_the_target_follows_the_rate(peer: OverlappedPeer) -> None:
    assert peer._share(4) == 4
    peer.tracker.part, peer.target_batch_size = 0.25, 100
    assert peer._share(40) == 25


def test_stopped_peer_does_not_wait_for_its_round(
    peer: OverlappedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.stopped = lambda: True
    done = peer.calculate(1, 1, 1)
    assert (peer.local_epoch, done.blocked) == (0, True)
    cancelled: list[bool] = []
    peer.scheduled_grads = SimpleNamespace(  # type: ignore[assignment]
        done=lambda: bool(cancelled), stage=AveragingStage.LOOKING_FOR_GROUP,
        cancel=lambda: (cancelled.append(True), peer._end.set()),
    )  # fmt: skip
    Clock(monkeypatch)  # it is stuck: only cancelling the group ends the wait
    peer.leave_round(10.0)
    assert cancelled == [True]
    assert peer._leaving


def test_matchmaking_is_cancelled_when_no_time_is_left(peer: OverlappedPeer) -> None:
    """Also if the round's thread has just cancelled the same group."""

    def given_up_already() -> None:
        asked.append(True)
        raise InvalidStateError

    asked: list[str] = []
    peer.calculate(1, 1, 1, 1)
    peer.scheduled_grads = SimpleNamespace(  # type: ignore[assignment]
        done=lambda: False, stage=AveragingStage.LOOKING_FOR_GROUP, cancel=given_up_already
    )
    peer.leave_round(0.0)
    assert asked == [True]
    peer._end.set()


def test_leaving_ends_in_time_whatever_the_round_does(
    peer: OverlappedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    peer.calculate(1, 1, 1, 1)
    clock.waits(peer, lambda _: False)
    peer.leave_round(30.0)
    assert 30.0 <= clock.now_s < 31.0
    peer._end.set()


def test_arrived_average_is_reported_at_once(peer: OverlappedPeer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.calculate(5)
    peer.come_to("averaged")
    assert (peer.local_epoch, peer.tracker.told, peer.tracker.reported) == (0, [1], [])
    peer.calculate(5)
    assert (peer.local_epoch, peer.tracker.told, peer.tracker.reported) == (1, [1], [(1, 2)])


@pytest.mark.parametrize("came_to", ["given up", "behind", "averaged"])
def test_epoch_is_not_reported_without_an_average(peer: OverlappedPeer, came_to: str) -> None:
    peer.calculate(1, 1, 1, 1)
    peer._leaving = came_to == "averaged"
    peer.come_to(came_to)
    assert peer.tracker.told == []


@pytest.mark.parametrize(("why", "reports"), [("astray", [1, 0]), ("behind", [0])])
def test_reported_epoch_is_withdrawn_before_the_state_is_loaded(
    peer: OverlappedPeer, monkeypatch: pytest.MonkeyPatch, why: str, reports: list[int]
) -> None:
    """Otherwise the others would look for weights that no peer has, for as long as the download takes."""
    reports_when_loading: list[list[int]] = []
    monkeypatch.setattr(peer, "load_state", lambda: reports_when_loading.append(list(peer.tracker.told)))  # type: ignore[attr-defined]
    peer.calculate(1, 1, 1, 1)
    peer.is_out = why == "astray"
    peer.come_to("averaged" if peer.is_out else why)
    peer.calculate(1)
    assert reports_when_loading == [reports]


def test_peer_leaving_with_an_average_withdraws_its_epoch(peer: OverlappedPeer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    assert peer.tracker.told == [1]
    peer.leave_round(10.0)
    assert (peer.local_epoch, peer.tracker.told) == (0, [1, 0])


def test_update_and_credit_lock_the_tracker_once(peer: OverlappedPeer) -> None:
    for came_to in ("averaged", "given up"):
        while peer._hidden is None:
            peer.calculate(1)
        peer.come_to(came_to)
        assert peer.tracker.resting
        before = peer.tracker.locks
        peer.calculate(1)
        assert peer.tracker.locks == before + 1
        assert not peer.tracker.resting


OUTCOMES = st.sampled_from(["averaged", "alone", "given up", "behind"])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), OUTCOMES), min_size=1, max_size=4))
def test_each_gradient_is_in_one_update_or_dropped(rounds: list[tuple[int, str]]) -> None:
    peer = OverlappedPeer()
    peer.load_state_from_peers = lambda joining=False, **_: peer.load_state()  # type: ignore[method-assign]
    sample, expected, kept = 0, 0.0, list[int]()
    for ahead, came_to in rounds:
        given_ = kept
        while len(given_) < SHARE:
            given_.append(1 << sample)
            peer.calculate(1 << sample)
            sample += 1
        kept = []
        for k in range(ahead + 1):
            if k == ahead:
                peer.come_to(came_to)
            kept.append(1 << sample)
            peer.calculate(1 << sample)
            sample += 1
        if came_to in ("averaged", "alone"):
            expected -= sum(given_) / SHARE * (2.0 if came_to == "averaged" else 1.0)
        elif came_to == "behind":
            kept = []
        assert peer.weight == expected
        assert float(peer.parameter.grad) == sum(kept)  # type: ignore[arg-type]
        assert peer.grad_averager.local_samples_accumulated == len(kept)


def test_config_selects_the_optimizer() -> None:
    assert _optimizer_of(config_of("a", "", (), overlap="delayed")) is OverlappedOptimizer
    with pytest.raises(PeerConfigError, match="'twice' is neither none nor delayed"):
        _optimizer_of(config_of("a", "", (), overlap="twice"))
