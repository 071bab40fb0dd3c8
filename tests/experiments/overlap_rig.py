"""A peer with a round behind its calculation, for tests that play the swarm: real gradients and buffers, no process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from hivemind.averaging.control import AveragingStage
from hivemind.utils.performance_ema import PerformanceEMA

from experiments.peer.averaging.double_buffer import DoubleBufferedAverager
from experiments.peer.averaging.lineage import FIRST, PeerVersion
from experiments.peer.averaging.rounds import BehindError, GivenUpError, Round
from experiments.peer.optimizer.overlap import OverlappedOptimizer
from experiments.peer.optimizer.overlap_policy import NextEpochProgress
from experiments.peer.swarm.members import anybody

SHARE = 4  # samples of an epoch, which this peer calculates alone: the others only average


class Averager(DoubleBufferedAverager):
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
        self.rounded = list[list[float]]()

    def step(self, increment_epoch: bool = False, optimizer_step: bool = False, **_: Any) -> None:
        if optimizer_step:
            self.optimizer.step()
        self.local_epoch += increment_epoch

    def round_for_update(self, gradients: list[torch.Tensor]) -> None:
        self.rounded.append([float(gradient) for gradient in gradients])

    def say(self, averaging: bool) -> None:
        self.said.append(averaging)

    def round_ended(self) -> None:
        self.say(averaging=False)

    def offers(self) -> list[Any]:
        return []


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

    def report_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def round_ends(self) -> None:
        self.resting = False

    def ask(self, _: float = 10.0) -> Any:
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
    is_member = staticmethod(anybody)

    def __init__(self) -> None:
        self.training, self.coming, self.said = 1, 0, list[str]()

    def others_training(self, _: int) -> int:
        return self.training

    def others_expected(self, _: int, until: str = "enough answered") -> int:
        return self.training

    def others_joining(self) -> int:
        return self.coming

    def announce(self, phase: str, epoch: int) -> None:
        self.said.append(f"{phase} {epoch}")


class OverlappedPeer(OverlappedOptimizer):
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
        self._lineage, self._version, self._on_retry = FIRST, PeerVersion(0, FIRST, ""), lambda _: None
        self._local_gradients_loaded, self._leaving, self.stopped = False, False, lambda: False
        self._update_is_here, self._asked, self._asked_at = False, None, -1
        self.target_batch_size, self.batch_size_per_step = SHARE, 1
        self.offload_optimizer, self.status_loglevel, self.is_out = False, 10, False
        self._hidden, self._ahead, self._schedule_early = None, NextEpochProgress(), False
        self._end, self._came_to, self.loads = threading.Event(), "averaged", 0

    def has_diverged(self, ahead_too: bool = True) -> bool:
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
                "a": PeerVersion(self.local_epoch, self._lineage, "a"),
                "b": PeerVersion(self.local_epoch, self._lineage, "b"),
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
