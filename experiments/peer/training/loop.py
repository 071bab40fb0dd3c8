"""The training loop: gradient accumulation with hivemind.Optimizer, with full accounting of time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cloud.clock import steady_clock
from cloud.storage.counter import ByteCounter
from experiments.peer.config import PeerConfig
from experiments.peer.optimizer.single_peer import PlainOptimizer
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.training.batches import Batches
from experiments.peer.training.epoch_accounting import EpochLedger, loss_reasons
from experiments.peer.training.loader import Loaded
from experiments.peer.training.ranks import Ranks
from experiments.peer.training.step_timer import Padding, StepClock
from experiments.peer.training.task import TaskRunner
from metrics.records import OUT_OF_SYNC, EgressRecord, EpochRecord, IngressRecord, StepRecord

_log = logging.getLogger(__name__)
_PAUSE_LOOK_S = 1.0


class StopTraining(Exception):
    """This peer was asked to leave in the middle of a step."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the loop; all return at once."""

    step: Callable[[StepRecord], None]
    epoch: Callable[[EpochRecord, list[EgressRecord], IngressRecord], None]
    losses: Callable[[], list[str]]  # reasons in Hivemind's log since the last call
    others_training_at: Callable[
        [int, int], int
    ]  # (epoch, others averaged with) -> others training at that epoch
    next_share: Callable[[], None]  # called between epochs
    used: Callable[[Loaded], None] = lambda loaded: None  # a batch whose accelerator steps have ended
    phase: Callable[[str, float, float], None] | None = None  # name, start and end on the monotonic clock


@dataclass
class Trainer:
    """Trains until `max_epochs`, the ordered last epoch, `samples_limit` or `stop`."""

    config: PeerConfig
    task: TaskRunner
    optimizer: SwarmOptimizer | PlainOptimizer
    batches: Batches[Loaded]
    snapshot: Callable[[], dict[str, int]]  # egress meter reading: bytes sent by address
    counter: ByteCounter
    hooks: Hooks
    stop: threading.Event
    joining_s: float = 0.0  # time for which the meter had been counting when this trainer was created
    # model data among the bytes sent; None: not counted
    model_bytes: Callable[[], dict[str, int] | None] = lambda: None
    paused: Callable[[], bool] = lambda: False  # whether the controller has paused training
    last_epoch: Callable[[], int | None] = lambda: None  # ordered by the controller; None: `max_epochs`
    unix_s: Callable[[], float] = time.time  # read once: records use the swarm's clock
    ranks: Ranks | None = None  # the VM's other accelerators
    padding: Padding = field(init=False)
    samples: int = field(init=False, default=0)  # total averaged by this peer

    def __post_init__(self) -> None:
        self.padding = Padding(time.perf_counter, self._sleep)
        self._now_s = steady_clock(self.unix_s, time.perf_counter)
        self._clock = StepClock(time.perf_counter, self._now_s, self.hooks.phase)

    def run(self) -> bool:
        """Train. Returns True if it ended by itself, False if it was stopped. Raises what source and task raise."""
        config, optimizer = self.config, self.optimizer
        optimizer.tracker.performance_ema.reset_timer()  # otherwise its first interval includes the barrier's wait
        ledger = EpochLedger(
            config.vm, self.snapshot, self.counter.read, self.task.ran, self.joining_s, self.model_bytes
        )
        optimizer.on_round_begins, optimizer.stopped = ledger.round_begins, self.stop.is_set
        self.hooks.losses()
        self._clock.restart()
        ledger.begin(self._now_s())
        if self.ranks is not None:
            optimizer.on_gradients_taken = self.ranks.average_gradients
            self.ranks.copy_model(drop_gradients=True)
        try:
            while optimizer.local_epoch < self._last_epoch() and not self._limit_reached():
                self._wait_while_paused(ledger)
                if self.stop.is_set():
                    return False
                optimizer.prepare_round()
                self._step(ledger)
        except StopTraining:
            return False
        finally:
            optimizer.on_round_begins = None
        return True

    def _wait_while_paused(self, ledger: EpochLedger) -> None:
        """Wait during a pause, unless others may be waiting for this peer in a round."""
        if not self.paused() or self.optimizer.round_scheduled:
            return
        _log.info("paused")
        began = self._now_s()
        while self.paused() and not self.stop.is_set():
            self.optimizer.hold(True)
            self.stop.wait(_PAUSE_LOOK_S)
        self.optimizer.hold(False)
        self._clock.restart()  # no step was running
        ledger.add_pause(self._now_s() - began)
        _log.info("paused for %.1f s", self._now_s() - began)

    def _step(self, ledger: EpochLedger) -> None:
        config, optimizer, clock = self.config, self.optimizer, self._clock
        for _ in range(config.coalesce):
            ledger.losses += self._accumulate()
        before = optimizer.local_epoch
        samples = config.samples_per_step
        with clock.phase("optimizer_local"):
            optimizer.step(batch_size=samples)
            done = optimizer.take_round()
            after = optimizer.local_epoch
            if after != before:
                ledger.round_ends()
            if self.ranks is not None and (after != before or done.state_loads):
                self.ranks.copy_model(drop_gradients=done.state_loads > 0)
        synchronised = after != before or done.state_loads > 0 or done.blocked
        if synchronised and not isinstance(optimizer, PlainOptimizer):
            clock.move_to_sync()
        if done.state_loads:
            samples = 0
            ledger.discard_samples()
            ledger.reasons.append(f"{OUT_OF_SYNC}: own gradients dropped, state loaded from a peer")
        record = clock.finish(config.vm, before, samples)
        ledger.add(record)
        ledger.add_hidden(done.hidden_s, done.ahead)
        self.hooks.step(record)
        if after == before:
            return
        others = self.hooks.others_training_at(before, done.group_size - 1)
        ledger.reasons += loss_reasons(done, self.hooks.losses(), others)
        epoch, egress, ingress = ledger.end(after, done.group_size)
        self.samples += epoch.samples
        _log.info(
            "epoch %d: group of %d, calc %.3f s, comm %.3f s, of which hidden %.3f s",
            after,
            done.group_size,
            epoch.calc_s,
            epoch.comm_s,
            epoch.overlapped_s,
        )
        self.hooks.epoch(epoch, egress, ingress)
        self.hooks.next_share()
        ledger.begin(epoch.ended_s)

    def _accumulate(self) -> list[float]:
        """Run one step of each accelerator, accumulating gradients in the .grad buffers. Returns their losses."""
        config, clock = self.config, self._clock
        with clock.phase("load"):
            loaded = self.batches.next(self.stop)
        if loaded is None:
            raise StopTraining
        with clock.phase("move"):
            if self.ranks is not None:
                numbers = range(1, 1 + len(loaded.others))
                self.ranks.accumulate(loaded.others, [loaded.samples_of(number) for number in numbers])
            batch = self.task.move(loaded.batch)
        with clock.phase("forward"), self.padding.to(config.forward_s):
            loss = self.task.loss(batch)
            self.task.wait()
            value = float(loss.detach())
        finite = self.task.check_loss(value, loaded.samples_of(0))
        with clock.phase("backward"), self.padding.to(config.backward_s):
            if finite:  # other gradients would be averaged into all peers
                # Hivemind divides by its number of steps, each of which is `coalesce` accelerator steps
                self.task.backward(loss / config.coalesce)
            self.task.wait()
            others = [] if self.ranks is None else self.ranks.losses(self.stop)
        if others is None:
            raise StopTraining
        self.hooks.used(loaded)
        return [value, *others]

    def _last_epoch(self) -> int:
        ordered = self.last_epoch()
        return self.config.max_epochs if ordered is None else min(ordered, self.config.max_epochs)

    def _limit_reached(self) -> bool:
        return self.config.samples_limit is not None and self.samples >= self.config.samples_limit

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StopTraining
