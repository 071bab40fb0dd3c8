"""A SwarmOptimizer whose rounds overlap with the next epoch's calculation (`swarm.overlap: delayed`).

Hivemind's delayed updates run the round in the state averager's executor, where a failure is only logged: the epoch has
already advanced, the gradients are gone, and there is no retry. Here the whole round, including retries, runs in a
thread, and the training thread applies its result between two steps. The swarm sees no difference: this peer's epoch
advances when its weights change, and samples calculated meanwhile count from then on.
"""

from __future__ import annotations

import contextlib
import logging
import time
from concurrent.futures import InvalidStateError
from typing import Any

from hivemind.averaging.control import AveragingStage

from experiments.peer.averaging.lineage import PeerVersion
from experiments.peer.averaging.rounds import BehindError, GivenUpError, Round
from experiments.peer.optimizer.background_round import BackgroundRound
from experiments.peer.optimizer.overlap_policy import Move, NextEpochProgress
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.state.catch_up import CatchUpResult

_log = logging.getLogger(__name__)
_LOOK_S = 0.25  # period at which a peer that waits for its round checks whether it has to leave
_NEWS_S = 2.0  # for the DHT to store a peer's report over long network paths

Group = dict[Any, PeerVersion | None]


class OverlappedOptimizer(SwarmOptimizer):
    """Runs one background round at a time: the next one begins with the weights of this one."""

    waits_for_rounds = True  # it is announced as "ready" while it catches up
    news_s = _NEWS_S  # this delay of a retry costs little, since it overlaps with calculation

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._hidden: BackgroundRound[Group | None] | None = None
        self._ahead = NextEpochProgress()
        # whether to schedule the next round early: most of the epoch was calculated before it began
        self._schedule_early = False
        super().__init__(*args, **kwargs)

    def step(self, closure: Any = None, batch_size: int | None = None, grad_scaler: Any = None) -> Any:
        """Like Hivemind's. While a round is running, the gradients belong to the next epoch."""
        if self._hidden is None:
            return super().step(closure, batch_size, grad_scaler)
        samples = self._samples(batch_size)
        self._ahead.add(samples)
        self.tracker.performance_ema.update(task_size=samples)
        self._go_on(self._hidden, samples)
        return None

    def take_round(self) -> Round:
        """Return what happened since the last call; of a running round only whether it blocked."""
        if self._hidden is None:
            return super().take_round()
        blocked, self.round.blocked = self.round.blocked, False
        return Round(blocked=blocked)

    def prepare_round(self) -> None:
        """After an update, schedule the next round at once if this peer's share is nearly calculated.

        The tracker would notice it only after the others' reports arrive, and matchmaking would begin then.
        """
        if not self._schedule_early or self._hidden is not None:
            return
        self._schedule_early = False
        left_s = self._ahead.left / self.tracker.performance_ema.samples_per_second
        if left_s <= float(self.matchmaking_time or 5.0) and self._others_known() > 0:
            averager: Any = self.grad_averager
            self.scheduled_grads = averager.schedule_step(timeout=self.averaging_timeout)

    @property
    def round_scheduled(self) -> bool:
        """Whether others may be looking for a group with this peer, or averaging with it."""
        return self._hidden is not None or super().round_scheduled

    def leave_round(self, timeout_s: float) -> None:
        """Before this peer leaves: cancel a round without a group; finish any other without applying its update."""
        hidden, give_up_at = self._hidden, time.monotonic() + timeout_s
        if hidden is None:
            super().leave_round(timeout_s)
            return
        self._leaving = True
        while not hidden.over:
            control = self.scheduled_grads
            if (
                control is not None
                and not control.done()
                and control.stage == AveragingStage.LOOKING_FOR_GROUP
            ):
                with contextlib.suppress(InvalidStateError):  # the round's thread has just given it up
                    control.cancel()
            if not hidden.wait(_LOOK_S) and time.monotonic() >= give_up_at:
                return
        self.progress.report_epoch(self.local_epoch)  # the next epoch's weights are lost with this peer

    def load_state_from_peers(self, joining: bool = False, **kwargs: Any) -> CatchUpResult:
        """Like SwarmOptimizer's, but announced, so that the others leave time for it (`overlap_policy.NextEpochProgress.move`)."""
        if joining or self._others is None:
            return super().load_state_from_peers(joining, **kwargs)
        self._others.announce("ready", self.local_epoch)
        result = super().load_state_from_peers(joining, **kwargs)
        self._others.announce("training", self.local_epoch)
        return result

    def _samples(self, batch_size: int | None) -> int:
        return batch_size or self.batch_size_per_step or 1

    def _run_round(self, grad_scaler: Any) -> None:
        if not self._others_expected():  # nothing is sent, so there is nothing to overlap
            super()._run_round(grad_scaler)
            return
        averager: Any = self.grad_averager
        _log.info("Beginning optimizer step #%d, overlapped with calculation", self.local_epoch)
        self._ahead = NextEpochProgress(share=self._share(averager.local_samples_accumulated))
        self._local_gradients_loaded = False
        averager.reserve_gradients()
        self.round.blocked = True
        self._hidden = BackgroundRound(self._average_hidden, time.perf_counter)
        self._hidden.start()
        self._go_on(self._hidden, self._samples(None))

    def _share(self, given: int) -> int:
        """This peer's share of the target batch size, by its rate. Using the samples it contributed (`given`) instead would
        let the share grow from epoch to epoch, as all peers take one step too many.
        """
        part = self.progress.part
        return given if part is None else round(part * self.target_batch_size)

    def _average_hidden(self) -> Group | None:
        """Average in the round's thread. The swarm's reports are not processed meanwhile, as in any round.

        The arrival of the average is reported at once: peers for which this attempt failed must not average again.
        """
        with self.tracker.lock_global_progress:
            self.progress.round_begins(float(self.averaging_timeout or 60.0))
            self._first_attempt()
            group = self._average(self.scheduled_grads)
            if not self._leaving:
                self.progress.report_epoch(self.local_epoch + 1)
            return group

    def _go_on(self, hidden: BackgroundRound[Group | None], step: int) -> None:
        stopped_s, ema = time.perf_counter(), self.tracker.performance_ema
        move = self._ahead.move(step, hidden.over, self._newcomers())
        if move is Move.CALCULATE:
            ema.reset_timer()
            hidden.calculation_begins()
            return
        self.round.blocked = True
        with ema.pause():
            while not hidden.wait(_LOOK_S):
                if self.stopped():
                    return
        self.round.hidden_s = hidden.hidden_s(stopped_s)
        self._end_round(hidden)

    def _newcomers(self) -> bool:
        """Whether peers are about to download the state. In the first epoch there is none yet."""
        return self._others is not None and self.local_epoch > 0 and self._others.others_joining() > 0

    def _end_round(self, hidden: BackgroundRound[Group | None]) -> None:
        averager: Any = self.grad_averager
        self._hidden, ahead = None, self._ahead
        self.progress.round_ends()
        try:
            with self.tracker.pause_updates():
                stepped = self._take_end(hidden)
                averager.begin_next_epoch(ahead.samples, ahead.steps)
                self.progress.credit(self.local_epoch, ahead.samples)
        except BehindError as error:
            averager.begin_next_epoch(0, 0)
            self.progress.report_epoch(self.local_epoch)  # this peer does not have the next epoch's weights
            self._catch_up_after(error)
            return
        self.round.ahead, self._schedule_early = ahead.samples, True
        self.round_ended(stepped)

    def _take_end(self, hidden: BackgroundRound[Group | None]) -> bool:
        """Transition to the next epoch; whether with a step. Raises BehindError and other errors of the round."""
        try:
            group = hidden.result()
        except GivenUpError as error:
            self._give_up(error)
            return False
        if self.has_diverged(ahead_too=False):
            raise BehindError("the swarm converges on parameters of another lineage")
        averager: Any = self.grad_averager
        with averager.round_gradients_in_place():
            if group is None:
                self._step_alone()
            else:
                self._take_over(group)
            self.state_averager.step(increment_epoch=True, optimizer_step=True)
        self._should_check_synchronization_on_update = True
        self._epoch_begins()
        return True
