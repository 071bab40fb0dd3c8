"""hivemind.Optimizer with what it keeps to itself made visible, and two of its faults mended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any

import hivemind
from hivemind.averaging.control import AveragingStage, StepControl

from experiments.peer.tracker import PunctualTracker

__all__ = ["NoGroupError", "Round", "SwarmOptimizer"]

_log = logging.getLogger(__name__)


class NoGroupError(Exception):
    """Nobody to average with was found in time, although the tracker counts others."""


@dataclass
class Round:
    """What one call of `SwarmOptimizer.step` did about synchronising."""

    group_size: int = 0  # peers averaged together; 1: alone; 0: no round in this call
    state_loads: int = 0
    losses: list[str] = field(default_factory=list)
    swarm_peers: int = 0  # peers the tracker knew of when the round began


class SwarmOptimizer(hivemind.Optimizer):
    """Records each round's group and failures, and mends two faults of `reuse_grad_buffers`.

    With `reuse_grad_buffers=True, offload_optimizer=False`, Hivemind 1.1.12
    - alone and without a pre-scheduled round, steps with the *sum* of the accumulated gradients;
    - after a failed round, steps with zeros: the buffers were reset when the round began, and
      "Proceeding with local gradients" loads those.
    Here the first uses their mean, the second what the averager holds (this peer's own mean,
    with the parts that were averaged before the failure).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.round = Round()
        self.sync_work_s = 0.0  # emulated: the real VM's own work around a round
        self.on_round_begins: Callable[[], None] | None = None
        self._local_gradients_loaded = False
        super().__init__(*args, **kwargs)

    def _make_progress_tracker(self, target_batch_size: int, **kwargs: Any) -> PunctualTracker:
        tracker = PunctualTracker(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            start=True,
            **kwargs,
        )
        tracker.samples_per_step = self.batch_size_per_step or 0
        self._punctual = tracker
        return tracker

    def take_round(self) -> Round:
        """What happened since the last call of this method."""
        taken, self.round = self.round, Round()
        return taken

    def _update_global_epoch(self, grad_scaler: Any) -> None:
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.swarm_peers = self.tracker.global_progress.num_peers
        super()._update_global_epoch(grad_scaler)

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        self._local_gradients_loaded = False
        began = super()._begin_averaging_gradients(grad_scaler)
        if not began:
            self.round.group_size = 1
            if self.round.swarm_peers > 1:
                self.round.losses.append("averaging could not begin: local gradients")
            if not self._local_gradients_loaded:
                self._load_local_gradients_into_optimizer()
        return began

    def _load_local_gradients_into_optimizer(self) -> None:
        super()._load_local_gradients_into_optimizer()
        self._local_gradients_loaded = True

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl | None) -> None:
        if maybe_step_control is None:
            super()._average_gradients_and_load_into_optimizer(maybe_step_control)
            return
        try:
            group = self._result_of(maybe_step_control)
            self.round.group_size = len(group)
            _log.info(f"Averaged gradients with {len(group)} peers")
        except Exception as error:  # noqa: BLE001 - any failure of a round: training goes on, the loss is counted
            self.round.group_size = 1
            self.round.losses.append(f"averaging failed ({type(error).__name__}): local gradients")
            _log.warning(f"Averaging gradients failed with {error!r}: local gradients")
        self._load_averaged_gradients_into_optimizer_()
        if self.round.group_size > 1:
            # within the step, where the tracker's estimate of the step rate is paused: slept after the step, it
            # made every estimate of the epoch's end late, and averaging waited a step longer for its schedule
            time.sleep(self.sync_work_s)

    def _result_of(self, control: StepControl) -> Any:
        """The round's result; raises NoGroupError rather than look for a group until averaging_timeout.

        A peer killed without a goodbye stays in the tracker's count for a while: the survivors of a
        pair would look for it for minutes.
        """
        limit_s = float(self.averaging_timeout or 60.0)
        patience_s = max(3.0 * float(self.matchmaking_time or 5.0), 6.0)
        try:
            return control.result(min(patience_s, limit_s))
        except FutureTimeoutError:
            if control.stage == AveragingStage.LOOKING_FOR_GROUP:
                control.cancel()
                raise NoGroupError(f"no group within {patience_s:g} s") from None
        return control.result(max(0.0, limit_s - patience_s))

    def hold(self, held: bool) -> None:
        """`PunctualTracker.hold`."""
        self._punctual.hold(held)

    def take_back_progress(self, timeout_s: float) -> None:
        """From now on nobody reckons with this peer; it may not train again."""
        self._punctual.shutdown(timeout_s)

    @property
    def round_scheduled(self) -> bool:
        """Whether others may be looking for a group with this peer, or averaging with it."""
        return self.scheduled_grads is not None and not self.scheduled_grads.done()

    def leave_round(self, timeout_s: float) -> None:
        """Before this peer goes: a round that has its group is finished with weight 0, any other given up.

        A group that lost a member it was formed with would wait for it, and miss its part of the average.
        """
        control, self.scheduled_grads = self.scheduled_grads, None
        if control is None or control.done():
            return
        if control.stage == AveragingStage.LOOKING_FOR_GROUP:
            control.cancel()
            return
        if not control.triggered:
            control.weight = 0.0
            control.allow_allreduce()
        try:
            control.result(timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever became of the round: this peer leaves
            _log.warning("left a round that was under way: %r", error)

    def load_state_from_peers(self, **kwargs: Any) -> None:
        """Download the newest state from a peer; blocks until it is here."""
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.state_loads += 1
        super().load_state_from_peers(**kwargs)
