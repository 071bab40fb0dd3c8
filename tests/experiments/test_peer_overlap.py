"""A peer whose rounds go on behind its calculation: real gradients and buffers, a swarm that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import InvalidStateError
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.averaging.control import AveragingStage
from hivemind.utils.performance_ema import PerformanceEMA
from hivemind.utils.timed_storage import get_dht_time
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.peer.ahead import Ahead
from experiments.peer.aside import AsideAverager
from experiments.peer.build import _optimizer_of
from experiments.peer.config import PeerConfigError
from experiments.peer.lineage import FIRST, Told
from experiments.peer.optimizer import SwarmOptimizer
from experiments.peer.overlap import OverlappedOptimizer
from experiments.peer.rounds import BehindError, GivenUpError, Round
from experiments.peer.tracker import PunctualTracker

SHARE = 4  # samples of an epoch, which this peer calculates alone: the others only average


class Averager(AsideAverager):
    """Its buffers, without a process."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameters, self.reuse_grad_buffers, self.warn = (parameter,), True, True
        self.local_samples_accumulated = self.local_times_accumulated = 0
        self._local_accumulators, self._accumulators_used_in_step = None, False
        self._anchor_batch_size = None
        self._averaged = [torch.zeros_like(parameter)]
        self.scheduled: list[float] = []

    @contextlib.contextmanager
    def get_tensors(self) -> Iterator[list[torch.Tensor]]:
        yield self._averaged

    def schedule_step(self, scheduled_time: float | None = None, **kwargs: Any) -> Any:
        self.scheduled.append(kwargs["timeout"])
        return SimpleNamespace(done=lambda: False, triggered=False, stage=AveragingStage.LOOKING_FOR_GROUP)

    def __del__(self) -> None:
        pass


class Weights:
    """The state averager: plain SGD with a rate of 1."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.optimizer, self.local_epoch, self.lineage = torch.optim.SGD([parameter], 1.0), 0, FIRST
        self.state_sharing_priority, self.said = 0, list[bool]()

    def step(self, increment_epoch: bool = False, optimizer_step: bool = False, **_: Any) -> None:
        if optimizer_step:
            self.optimizer.step()
        self.local_epoch += increment_epoch

    def say(self, averaging: bool) -> None:
        self.said.append(averaging)

    def round_ended(self) -> None:
        self.say(averaging=False)


class Tracker:
    """The swarm's progress, as far as this peer makes it."""

    stale, part = False, None

    def __init__(self) -> None:
        self.performance_ema, self.lock_global_progress = PerformanceEMA(), threading.Lock()
        self.global_progress = SimpleNamespace(num_peers=2, epoch=0)
        self.samples, self.reported = 0, list[tuple[int, int]]()
        self.told, self.locks, self.resting = list[int](), 0, False

    @property
    def global_epoch(self) -> int:
        return self.global_progress.epoch

    @property
    def ready_to_update_epoch(self) -> bool:
        return self.samples >= SHARE

    def report_local_progress(self, epoch: int, samples: int) -> None:
        self.samples = samples

    @contextlib.contextmanager
    def pause_updates(self) -> Iterator[None]:
        self.locks += 1
        with self.lock_global_progress, self.performance_ema.pause():
            yield

    def round_begins(self, limit_s: float) -> None:
        assert self.lock_global_progress.locked()
        self.resting = True

    def tell_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def round_ends(self) -> None:
        self.resting = False

    def ask(self) -> Any:
        return self.global_progress

    def update_epoch(self, new_epoch: int) -> None:
        assert self.lock_global_progress.locked()
        self.global_progress.epoch, self.samples = new_epoch, 0

    def credit(self, epoch: int, samples: int) -> None:
        assert self.lock_global_progress.locked()
        assert not self.resting
        self.samples = samples
        self.reported.append((epoch, samples))


class Others:
    """A membership that says so."""

    gone = ()

    def __init__(self) -> None:
        self.training, self.coming, self.said = 1, 0, list[str]()

    def others_training(self, _: int) -> int:
        return self.training

    def others_training_at(self, _: int, seen: int) -> int:
        return self.training

    def others_coming(self) -> int:
        return self.coming

    def announce(self, phase: str, epoch: int) -> None:
        self.said.append(f"{phase} {epoch}")


class Peer(OverlappedOptimizer):
    """One whose rounds end when and as the test says."""

    auxiliary = False

    def __init__(self) -> None:
        self._parent_pid = -1  # nothing to shut down
        self.run_id, self.dht = "run", SimpleNamespace(peer_id="me")
        self.parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.grad_averager: Any = Averager(self.parameter)
        self.state_averager: Any = Weights(self.parameter)
        self.tracker = self.progress = Tracker()  # type: ignore[assignment]
        self.round, self.on_round_begins, self.scheduled_grads = Round(), None, None
        self.sync_work_s, self.matchmaking_time, self.averaging_timeout = 0.0, 0.2, 30.0
        self._others: Any = Others()
        self._lineage, self._told, self._on_retry = FIRST, Told(0, FIRST, ""), lambda _: None
        self._local_gradients_loaded, self._leaving, self.stopped = False, False, lambda: False
        self.target_batch_size, self.batch_size_per_step = SHARE, 1
        self.offload_optimizer, self.status_loglevel, self.is_out = False, 10, False
        self._hidden, self._ahead, self._look_early = None, Ahead(), False
        self._end, self._came_to, self.loads = threading.Event(), "averaged", 0

    def is_astray(self, ahead_too: bool = True) -> bool:
        return self.is_out

    def _maybe_schedule_gradient_averaging(self) -> None: ...
    def _maybe_schedule_state_averaging(self) -> None: ...

    def _first_attempt(self) -> None:
        self.grad_averager.load_accumulators_into_averager_()

    def _average(self, control: Any) -> Any:
        assert self._end.wait(20.0)
        if self._came_to == "averaged":
            self.grad_averager._averaged[0].mul_(2.0)  # the others have three times as much
            return {
                "a": Told(self.local_epoch, self._lineage, "a"),
                "b": Told(self.local_epoch, self._lineage, "b"),
            }
        if self._came_to == "alone":
            return None
        raise {"behind": BehindError, "given up": GivenUpError, "fault": OSError}[self._came_to](
            self._came_to
        )

    def load_state(self) -> None:
        self.loads += 1
        self.round.state_loads += 1
        self.grad_averager.reset_accumulated_grads_()
        self.tracker.samples = 0  # type: ignore[attr-defined]

    def calculate(self, *gradients: float) -> Round:
        """A step of one sample for each gradient; what the last one said."""
        said = Round()
        for gradient in gradients:
            self.prepare_round()
            (gradient * self.parameter.sum()).backward()
            self.step(batch_size=1)
            said = self.take_round()
        return said

    def come_to(self, what: str) -> None:
        """The round under way is over."""
        self._came_to = what
        self._end.set()
        while self._hidden is not None and not self._hidden.over:
            time.sleep(0.001)
        self._end = threading.Event()

    @property
    def weight(self) -> float:
        return float(self.parameter.detach())


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Peer:
    made = Peer()
    monkeypatch.setattr(
        "experiments.peer.catching_up.CatchingUp.load_state_from_peers",
        lambda self, joining=False, **_: self.load_state(),
    )
    return made


def test_an_update_comes_while_the_next_gradients_are_calculated(peer: Peer) -> None:
    began = peer.calculate(1, 2, 3, 4)  # its mean is 2.5, the swarm's 5
    assert began.busied
    assert (peer.weight, peer.local_epoch, peer.round_scheduled) == (0.0, 0, True)
    said = peer.calculate(10, 20)
    assert (said, peer.weight, peer.local_epoch) == (Round(), 0.0, 0)
    peer.come_to("averaged")
    said = peer.calculate(30)
    assert (peer.weight, peer.local_epoch) == (-5.0, 1)
    assert (said.group_size, said.ahead, said.state_loads, said.losses) == (2, 3, 0, [])
    assert said.hidden_s > 0.0
    assert peer.tracker.reported == [(1, 3)]
    peer.calculate(40)  # the fourth sample: the next round, with what was calculated ahead
    peer.come_to("averaged")
    peer.calculate(7)
    assert (peer.weight, peer.local_epoch) == (-5.0 - 2.0 * 25.0, 2)


def test_the_last_step_of_an_epoch_waits_for_the_update(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.calculate(5, 5)
    threading.Timer(0.3, peer._end.set).start()
    began = time.monotonic()
    said = peer.calculate(5)
    assert time.monotonic() - began > 0.2
    assert (said.busied, said.ahead, peer.local_epoch, peer.weight) == (True, 3, 1, -2.0)
    assert said.hidden_s < 0.2  # what was waited for is not hidden


def test_nobody_else_is_left(peer: Peer) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.calculate(10)
    peer.come_to("alone")
    said = peer.calculate(10)
    assert (peer.weight, said.group_size, peer.tracker.reported) == (-2.5, 1, [(1, 2)])


def test_alone_from_the_beginning_nothing_is_hidden(peer: Peer) -> None:
    peer._others.training, peer.tracker.global_progress.num_peers = 0, 1
    peer._run_round = lambda _: setattr(peer, "ran", True) or setattr(peer.tracker, "samples", 0)  # type: ignore[method-assign]
    peer.calculate(1, 2, 3, 4)
    assert peer.__dict__["ran"]


def test_a_round_that_is_given_up_costs_its_gradients_only(peer: Peer) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.calculate(10, 20)
    peer.come_to("given up")
    said = peer.calculate(30)
    assert (peer.weight, peer.local_epoch, said.group_size, said.ahead) == (0.0, 1, 1, 3)
    assert said.losses == ["round given up: gradients dropped (given up)"]
    peer.calculate(40)
    peer.come_to("averaged")
    peer.calculate(1)
    assert peer.weight == -2.0 * 25.0


@pytest.mark.parametrize("why", ["behind", "astray"])
def test_who_is_behind_drops_both_and_is_given_time(peer: Peer, why: str) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.calculate(10, 20)
    peer.is_out = why == "astray"
    peer.come_to("averaged" if peer.is_out else why)
    said = peer.calculate(30)
    peer.is_out = False
    assert (said.state_loads, said.ahead, peer.loads, peer.weight) == (1, 0, 1, 0.0)
    assert peer._others.said == ["ready 0", "training 0"]
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    peer.calculate(7)
    assert peer.weight == -2.0  # nothing of before is in it


def test_a_fault_of_the_round_is_the_training_loops(peer: Peer) -> None:
    peer.calculate(1, 2, 3, 4)
    peer.come_to("fault")
    with pytest.raises(OSError, match="fault"):
        peer.calculate(1)


def test_a_newcomer_is_given_the_time_between_two_rounds(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    peer.calculate(1)
    peer._others.coming = 1
    threading.Timer(0.2, peer._end.set).start()
    said = peer.calculate(1, 1, 1)  # its round begins and ends in the last of these
    assert (peer.local_epoch, said.ahead, said.hidden_s) == (2, 0, 0.0)


def test_the_next_group_is_looked_for_at_once_when_little_is_left(peer: Peer) -> None:
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


def test_the_tracker_is_enough_when_much_is_left(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    peer.calculate(1)
    peer.tracker.performance_ema.samples_per_second = 0.1
    peer.prepare_round()
    assert peer.grad_averager.scheduled == []


def test_a_share_is_of_the_target_by_pace(peer: Peer) -> None:
    assert peer._share(4) == 4
    peer.tracker.part, peer.target_batch_size = 0.25, 100
    assert peer._share(40) == 25


def test_who_has_to_go_waits_no_longer_for_its_round(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.stopped = lambda: True
    said = peer.calculate(1, 1, 1)
    assert (peer.local_epoch, said.busied) == (0, True)
    cancelled: list[bool] = []
    peer.scheduled_grads = SimpleNamespace(  # type: ignore[assignment]
        done=lambda: bool(cancelled), stage=AveragingStage.LOOKING_FOR_GROUP,
        cancel=lambda: (cancelled.append(True), peer._end.set()),
    )  # fmt: skip
    began = time.monotonic()
    peer.leave_round(10.0)
    assert time.monotonic() - began < 5.0
    assert cancelled == [True]
    assert peer._leaving


def test_who_has_no_time_left_gives_the_group_up_at_once(peer: Peer) -> None:
    """Also where the round's thread gave the same group up a moment before."""

    def given_up_already() -> None:
        asked.append(True)
        raise InvalidStateError

    asked: list[bool] = []
    peer.calculate(1, 1, 1, 1)
    peer.scheduled_grads = SimpleNamespace(  # type: ignore[assignment]
        done=lambda: False, stage=AveragingStage.LOOKING_FOR_GROUP, cancel=given_up_already
    )
    peer.leave_round(0.0)
    assert asked == [True]
    peer._end.set()


def test_leaving_ends_in_time_whatever_the_round_does(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    began = time.monotonic()
    peer.leave_round(0.3)
    assert 0.2 < time.monotonic() - began < 2.0
    peer._end.set()


def test_an_average_is_told_when_it_is_here_and_not_a_step_later(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.calculate(5)
    peer.come_to("averaged")
    assert (peer.local_epoch, peer.tracker.told, peer.tracker.reported) == (0, [1], [])
    peer.calculate(5)
    assert (peer.local_epoch, peer.tracker.told, peer.tracker.reported) == (1, [1], [(1, 2)])


@pytest.mark.parametrize("came_to", ["given up", "behind", "averaged"])
def test_what_this_peer_will_not_take_over_is_not_told(peer: Peer, came_to: str) -> None:
    peer.calculate(1, 1, 1, 1)
    peer._leaving = came_to == "averaged"
    peer.come_to(came_to)
    assert peer.tracker.told == []


@pytest.mark.parametrize(("why", "told"), [("astray", [1, 0]), ("behind", [0])])
def test_an_epoch_that_is_not_taken_over_is_taken_back_before_the_state_is_loaded(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, why: str, told: list[int]
) -> None:
    """Else the others would look for weights that nobody has, for as long as that takes."""
    told_when_loading: list[list[int]] = []
    monkeypatch.setattr(peer, "load_state", lambda: told_when_loading.append(list(peer.tracker.told)))  # type: ignore[attr-defined]
    peer.calculate(1, 1, 1, 1)
    peer.is_out = why == "astray"
    peer.come_to("averaged" if peer.is_out else why)
    peer.calculate(1)
    assert told_when_loading == [told]


def test_who_leaves_with_an_average_takes_its_epoch_back(peer: Peer) -> None:
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")
    assert peer.tracker.told == [1]
    peer.leave_round(10.0)
    assert (peer.local_epoch, peer.tracker.told) == (0, [1, 0])


def failing(swarm: Any, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """A peer whose first attempt failed, and whose second would succeed; `swarm` has an `epoch`."""
    made, ends = Peer(), [OSError("a reducer died"), None]
    swarm.asked_s = []

    def result(_: float) -> dict[str, Any]:
        error = ends.pop(0)
        swarm.ended_s = time.monotonic()
        if error is not None:
            raise error
        return {"b": made._told.as_list(), "c": Told(0, FIRST, "c").as_list()}

    def ask() -> Any:
        swarm.asked_s.append(time.monotonic())
        return swarm

    control = SimpleNamespace(result=result, done=lambda: True)
    made._average = lambda control: OverlappedOptimizer._average(made, control)  # type: ignore[method-assign]
    made._attempt = lambda control, left_s: made_control  # type: ignore[method-assign, return-value]
    made_control = control
    made.tracker.ask = ask  # type: ignore[attr-defined]
    made.load_state_from_peers = lambda joining=False, **_: made.load_state()  # type: ignore[method-assign]
    monkeypatch.setattr("experiments.peer.optimizer._LEAST_S", 0.0)
    made.news_s = 0.0
    return made


def test_whom_a_round_failed_for_does_not_average_again_without_those_it_succeeded_for(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others would have two lineages; nobody would know of them in the last epoch."""
    failed = failing(peer.tracker, monkeypatch)
    peer.tracker.__class__.epoch = property(lambda self: [0, *self.told][-1])  # type: ignore[attr-defined]
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")  # in the middle of a step
    failed.calculate(1, 1, 1, 1)
    failed.come_to("")
    failed.calculate(1)
    assert peer.local_epoch == 0
    assert (failed.loads, failed.weight, failed._lineage) == (1, 0.0, FIRST)


def test_where_it_succeeded_for_nobody_it_is_tried_again_after_the_news_had_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swarm = SimpleNamespace(epoch=0)
    peer = failing(swarm, monkeypatch)
    assert OverlappedOptimizer.news_s >= 1.0
    assert SwarmOptimizer.news_s == 0.0
    peer.news_s = 0.3
    monkeypatch.setattr(peer, "_on_retry", lambda _: swarm.retried.append(swarm.asked_s[0] - swarm.ended_s))
    swarm.retried = []
    peer.calculate(1, 1, 1, 1)
    peer.come_to("")
    peer.calculate(1)
    assert (peer.loads, peer.weight, peer.local_epoch) == (0, -1.0, 1)
    assert [waited_s >= 0.3 for waited_s in swarm.retried] == [True]


@pytest.mark.parametrize(("news_s", "weight", "loads"), [(0.01, -1.0, 0), (0.0, 0.0, 1)])
def test_the_word_of_one_that_died_with_the_average_does_not_count(
    monkeypatch: pytest.MonkeyPatch, news_s: float, weight: float, loads: int
) -> None:
    """It told the next epoch and was killed: the survivor of the pair would wait for a state that nobody has.

    Without overlap an epoch is told with its weights: there the swarm is looked at first, as ever.
    """
    swarm = SimpleNamespace(epoch=1)
    peer = failing(swarm, monkeypatch)

    def found_dead(_: int, seen: int) -> int:
        swarm.epoch = 0  # the tracker leaves the dead out
        return 0

    monkeypatch.setattr(peer._others, "others_training_at", found_dead)
    peer.news_s = news_s
    peer.calculate(1, 1, 1, 1)
    peer.come_to("")
    peer.calculate(1)
    assert (peer.weight, peer.loads, peer.local_epoch) == (weight, loads, 1 - loads)


def test_an_update_and_its_credit_wait_for_the_tracker_once(peer: Peer) -> None:
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
    peer = Peer()
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


def test_the_config_says_which(tmp_path: Any) -> None:
    assert _optimizer_of(SimpleNamespace(overlap="delayed")) is OverlappedOptimizer  # type: ignore[arg-type]
    with pytest.raises(PeerConfigError, match="'twice' is neither none nor delayed"):
        _optimizer_of(SimpleNamespace(overlap="twice"))  # type: ignore[arg-type]


def tracker_of(own_sps: float, **others: float) -> Any:
    """A real tracker without its thread; `others`: what peers of such ids report."""
    tracker: Any = object.__new__(PunctualTracker)
    known: dict[str, Any] = {
        "dht": SimpleNamespace(peer_id=SimpleNamespace(to_bytes=lambda: b"me")), "is_alive": lambda: False,
        "performance_ema": SimpleNamespace(samples_per_second=own_sps, num_updates=3),
        "global_progress": SimpleNamespace(epoch=5, samples_accumulated=70, next_fetch_time=1e12),
        "local_progress": SimpleNamespace(samples_accumulated=0), "min_refresh_period": 0.5, "client_mode": False,
        "should_report_progress": threading.Event(), "global_state_updated": threading.Event(),
        "fetched_global_progress_this_epoch": threading.Event(), "lock_global_progress": threading.Lock(),
        "_rates": {name.encode(): sps for name, sps in others.items()},
    }  # fmt: skip
    for name, value in known.items():
        setattr(tracker, name, value)
    return tracker


def test_a_peers_part_is_that_of_its_pace() -> None:
    assert tracker_of(10.0).part is None
    assert tracker_of(10.0, me=99.0, a=20.0, b=10.0).part == 0.25


def test_a_credit_is_told_at_once_and_the_others_are_asked_for_theirs() -> None:
    tracker = tracker_of(10.0, a=20.0)
    tracker._get_local_progress = lambda epoch, samples: (epoch, samples)
    tracker.credit(5, 30)
    assert (tracker.local_progress, tracker.global_progress.samples_accumulated) == ((5, 30), 100)
    assert tracker.should_report_progress.is_set()
    assert tracker.global_state_updated.is_set()
    assert tracker.global_progress.next_fetch_time - get_dht_time() < 1.0
    tracker.credit(4, 30)  # the swarm is ahead: none of its epoch's
    assert tracker.global_progress.samples_accumulated == 100


def test_samples_are_counted_once_where_the_epoch_was_told_before_they_were() -> None:
    tracker = tracker_of(10.0, a=20.0)
    tracker.performance_ema.reset_timer = lambda: None
    tracker._get_local_progress = lambda epoch, n: SimpleNamespace(epoch=epoch, samples_accumulated=n)
    tracker.local_progress = tracker._get_local_progress(5, 40)
    tracker.tell_epoch(6)
    assert tracker.should_report_progress.is_set()
    assert (tracker.local_progress.epoch, tracker.local_progress.samples_accumulated) == (6, 0)
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == (5, 70)
    with tracker.lock_global_progress:
        tracker.update_epoch(6)
        tracker.credit(6, 30)
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == (6, 30)


def test_while_a_round_goes_on_its_beginning_is_the_estimate() -> None:
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
    """Answers with nothing, after a while; counts the questions."""

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


def test_no_fetch_that_waited_for_the_round_goes_before_the_update() -> None:
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
