"""hivemind.Optimizer whose rounds end in time, and leave all peers with the same parameters.

It also replaces Hivemind's download of the state (state/catch_up.py, state/server.py).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.matchmaking import MatchmakingException

from experiments.peer.averaging.lineage import (
    FIRST,
    PeerVersion,
    after_round,
    alone,
    astray,
    extended,
    parse_version,
)
from experiments.peer.averaging.rounds import (
    BehindError,
    GivenUpError,
    NoGroupError,
    Others,
    Round,
    TooFewError,
    Until,
    leave,
    let_go,
    result_of,
)
from experiments.peer.optimizer.progress_tracker import PunctualTracker
from experiments.peer.state.catch_up import CatchUpResult, Get, Limits, catch_up, decide
from experiments.peer.state.server import StateDonor

__all__ = ["Round", "SwarmOptimizer"]

_log = logging.getLogger(__name__)
_PASSED_OVER = "passed over"  # the lineage of a round without a step
_LEAST_S = 1.0  # of an attempt: what fails at once is not tried again at once
_GIVE_UP_S, _LOOK_S = 5.0, 0.25  # for the others' step, and how often the DHT is asked meanwhile
_LAST_RESORT = 2 / 3  # of the averaging time-out: from then on any group is better than none


class SwarmOptimizer(hivemind.Optimizer):
    """Tries a failed round again with the gradients kept, and never steps with what others do not step with.

    A round ends, at most `averaging_timeout` after it was begun, in one of four ways: all results are here
    (the optimizer steps); nobody else trains (it steps with its own mean); others went on without this peer
    (it loads their state); it is given up: the epoch ends without a step, here as with everybody whom it failed
    for.

    With `reuse_grad_buffers=True, offload_optimizer=False`, Hivemind 1.1.12 alone and without a
    pre-scheduled round steps with the *sum* of the accumulated gradients; here with their mean.

    The state is taken over and handed out by calls of our own, since Hivemind's download

    - picks a donor at random, and after a time-out begins one more download while the old ones go on;
    - hands out weights while a step changes them;
    - calls a peer with the state of epoch e up to date once the others are at e + 1: its weights lack an update
      for good where parameters are not averaged;
    - downloads for ever where an epoch is shorter than a download.
    """

    state_averager: StateDonor
    waits_for_rounds = False  # whether nobody waits for a peer that fell behind until it is back
    news_s = 0.0  # after a failed attempt, until somebody for whom it succeeded has surely said so

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.round = Round()
        self.sync_work_s = 0.0  # emulated: the real VM's own work around a round
        self.on_round_begins: Callable[[], None] | None = None
        self._others: Others | None = None  # None: the tracker's count is all there is
        self._on_retry: Callable[[str], None] = lambda reason: None
        self._lineage, self._version = FIRST, PeerVersion(0, FIRST, "")
        self._local_gradients_loaded = False
        self._update_is_here = False  # the gradient averager holds what the last step was made with
        self._asked: Any = None  # the question under way about the others' lineages
        self._asked_at = -1  # the epoch it is about
        self._any_group_at_s = float("inf")  # of this round
        self._leaving = False
        self.stopped: Callable[[], bool] = lambda: False  # whether to stop waiting for a round
        super().__init__(*args, **kwargs)
        averager: Any = self.grad_averager
        averager.version = self._next_version
        self.state_averager.next_lineage = lambda: self._lineage

    def _make_state_averager(self, **kwargs: Any) -> StateDonor:
        """As Hivemind's own, which names its class outright."""
        donor = StateDonor(
            dht=self.dht,
            prefix=f"{self.run_id}_state_averager",
            min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            shutdown_timeout=self.shutdown_timeout,
            offload_optimizer=self.offload_optimizer,
            custom_gradients=self.offload_optimizer,
            status_loglevel=self.status_loglevel,
            next_chunk_timeout=self.next_chunk_timeout,
            client_mode=self.client_mode,
            auxiliary=self.auxiliary,
            start=True,
            **kwargs,
        )
        donor.last_update = self._last_update
        return donor

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
        self.progress = tracker
        return tracker

    def watch_others(self, others: Others, on_retry: Callable[[str], None]) -> None:
        """Ask `others` who trains and who is dead; call `on_retry` with the reason of each failed attempt."""
        self._others, self._on_retry = others, on_retry
        self.progress.gone = lambda: others.gone
        self.progress.is_member = others.is_member

    def take_round(self) -> Round:
        """What happened since the last call of this method."""
        taken, self.round = self.round, Round()
        return taken

    def _next_version(self) -> PeerVersion:
        peers, attempt = 1 + self._others_known(), 1 + len(self.round.failed)
        if attempt > 1 and time.monotonic() >= self._any_group_at_s:
            peers = 1
        nonce = os.urandom(8).hex()
        self._version = PeerVersion(self.local_epoch, self._lineage, nonce, peers, attempt, self.round.lost)
        return self._version

    def _others_known(self) -> int:
        return 0 if self._others is None else self._others.others_training(self.local_epoch)

    def _should_load_state_from_peers(self) -> bool:
        """Whether others have ended an epoch without this peer.

        Hivemind lets a peer that is one epoch behind step with its own gradients and call that caught up.
        """
        return self.is_astray() or self.local_epoch < self.tracker.global_epoch

    def _update_global_epoch(self, grad_scaler: Any) -> None:
        if self.progress.stale:  # after a standstill the own estimate says that the epoch is over
            with self.tracker.pause_updates():
                self.progress.ask()
        if self._should_load_state_from_peers():
            self.load_state_from_peers()
            return
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.swarm_peers = self.tracker.global_progress.num_peers
        self.round_begins()
        self._run_round(grad_scaler)

    def _run_round(self, grad_scaler: Any) -> None:
        """From the epoch's last gradients to the next epoch."""
        try:
            super()._update_global_epoch(grad_scaler)
        except BehindError as error:
            self._went_on_without(error)
        except GivenUpError as error:
            with self.tracker.pause_updates():
                self._give_up(error)
            self.round_ended(stepped=False)
        else:
            self.round_ended(stepped=True)

    def _went_on_without(self, error: BehindError) -> None:
        _log.warning("the others went on without this peer: %s", error)
        self.load_state_from_peers()

    def _give_up(self, error: GivenUpError) -> None:
        """End the epoch without a step; all whom the round failed for do the same. For use inside `pause_updates`."""
        self.round.losses.append(f"round given up: gradients dropped ({error})")
        _log.warning("the round is given up: %s", error)
        averager: Any = self.grad_averager
        self.round.group_size = 1
        self._lineage = extended(self._lineage, _PASSED_OVER)
        self.state_averager.step(increment_epoch=True)
        self._epoch_begins()
        averager.reset_accumulated_grads_()

    def _epoch_begins(self) -> None:
        """The weights are another epoch's: tell the swarm."""
        self.tracker.update_epoch(new_epoch=self.state_averager.local_epoch)
        self.state_averager.state_sharing_priority = self.local_epoch

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        self._local_gradients_loaded = False
        if self._others_expected():
            self._first_attempt()
            return True
        self.scheduled_grads = self._take_scheduled()
        super()._begin_averaging_gradients(grad_scaler)  # with nobody: it cancels what was scheduled
        self._step_alone()
        return False

    def _others_expected(self) -> bool:
        return max(self.round.swarm_peers - 1, self._others_known()) > 0

    def _take_scheduled(self) -> StepControl | None:
        """The round that was prepared, if it is still of use."""
        control, self.scheduled_grads = self.scheduled_grads, None
        early = control is not None and (control.triggered or control.done())
        return None if early else control  # its attempt failed early: a new one begins

    def _first_attempt(self) -> None:
        control = self._take_scheduled()
        try:
            self.scheduled_grads = self._attempt(control, float(self.averaging_timeout or 60.0))
        except Exception as error:  # noqa: BLE001 - whatever keeps it from beginning: it is tried again
            _log.warning("an attempt to average could not begin: %r", error)

    def _step_alone(self) -> None:
        self.round.group_size = 1
        if not self._local_gradients_loaded:
            self._load_local_gradients_into_optimizer()
        self._lineage = alone(self._lineage, self.dht.peer_id)

    def _load_local_gradients_into_optimizer(self) -> None:
        """Round local gradients through the wire format before stepping: peers that receive this update later see only the rounded
        values.

        Unrounded, a gradient that is 0 in float16 would move a weight here, in Adam's first step as far as any other.
        """
        _log.info("Proceeding with local gradients")
        averager: Any = self.grad_averager
        averager.load_accumulators_into_averager_()
        with averager.get_tensors() as gradients:
            self.state_averager.round_as_given_away(gradients)
        self._load_averaged_gradients_into_optimizer_()
        self._local_gradients_loaded = True

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl | None) -> None:
        """Average, and put the average where the optimizer finds it. Raises as `_average`."""
        group = self._average(maybe_step_control)
        if group is None:
            self._step_alone()
        else:
            self._take_over(group)

    def _average(self, control: StepControl | None) -> dict[Any, PeerVersion | None] | None:
        """Average, trying again while there is time: the group whose average is here. None: nobody else trains.

        Raises BehindError or GivenUpError, the gradients untouched.
        """
        limit_s = float(self.averaging_timeout or 60.0)
        give_up_at = time.monotonic() + limit_s
        self._any_group_at_s = give_up_at - (1.0 - _LAST_RESORT) * limit_s
        while True:
            began = time.monotonic()
            try:
                control = self.scheduled_grads = control or self._attempt(None, give_up_at - time.monotonic())
                group = result_of(
                    control, give_up_at - time.monotonic(), self.matchmaking_time or 5.0, self._others_went_on
                )
            except Exception as error:  # noqa: BLE001 - any failure of an attempt: what can be done about it follows
                too_few = isinstance(error, TooFewError)
                reason = f"averaging failed ({type(error).__name__}: {error})"
                _log.warning("an attempt to average failed with %r", error)
                # as Hivemind calls an all-reduce's end
                self.round.lost += isinstance(error, MatchmakingException)
            else:
                return self._of_this_lineage(group)
            let_go(control, self.grad_averager)
            control = None
            self.round.failed.append(reason)
            if self._leaving:
                raise GivenUpError(f"this peer leaves; {reason}")
            time.sleep(self.news_s)
            # first: the DHT waits for who is silent; and thoroughly where epochs are told before the weights are there,
            # since what a dead peer told is nobody's. Groups that are too small would never meet if each first looked around
            until: Until = "known" if self.news_s > 0.0 else "now" if too_few else "enough answered"
            others = self._look_for_others(until)
            if self._others_went_on(_LEAST_S if too_few else None):
                raise GivenUpError(reason) if self._passed_over() else BehindError(reason)
            if not others:
                return None
            time.sleep(max(0.0, began + _LEAST_S - time.monotonic()))
            if give_up_at - time.monotonic() < float(self.matchmaking_time or 5.0):
                if self._others_go_on_before(give_up_at):
                    raise BehindError(reason)
                raise GivenUpError(reason)
            self._on_retry(reason)

    def _of_this_lineage(self, group: dict[Any, Any]) -> dict[Any, PeerVersion | None]:
        """The versions of the group's members. Raises BehindError when its average is for other parameters than this peer's."""
        versions = {peer: parse_version(value) for peer, value in group.items()}
        if astray(versions, self._version):
            self._wait_for_epoch(1 + max(one.epoch for one in versions.values() if one is not None))
            raise BehindError("its parameters are of another lineage than the group's")
        return versions

    def _take_over(self, group: dict[Any, PeerVersion | None]) -> None:
        """The group's average is here: load it."""
        self._lineage = after_round(group, self._version)
        self.round.group_size = len(group)
        _log.info("Averaged gradients with %d peers", len(group))
        self._load_averaged_gradients_into_optimizer_()
        # within the step, where the tracker's estimate of the step rate is paused: slept after the step, it
        # made every estimate of the epoch's end late, and averaging waited a step longer for its schedule
        time.sleep(self.sync_work_s)

    def _wait_for_epoch(self, epoch: int) -> None:
        """Until somebody has ended its round: its state is of use then, or another one is needed at once."""
        give_up_at = time.monotonic() + self.sync_work_s + _GIVE_UP_S
        while self.progress.ask().epoch < epoch and time.monotonic() < give_up_at:
            time.sleep(_LOOK_S)

    def _others_went_on(self, limit_s: float | None = None) -> bool:
        """As far as the DHT says so in time: it may wait for one that is silent, and the next attempt asks again."""
        limit_s = float(self.matchmaking_time or 5.0) if limit_s is None else limit_s
        return self.progress.ask(limit_s).epoch > self.local_epoch

    def _passed_over(self) -> bool:
        """Whether all that others did about this epoch was to give its round up: nothing is to be had of them then."""
        passed = extended(self._lineage, _PASSED_OVER)
        newer = [one.lineage for one in self.state_averager.offers() if one.epoch > self.local_epoch]
        return bool(newer) and all(lineage == passed for lineage in newer)

    def _others_go_on_before(self, end_s: float) -> bool:
        """Their last attempt may succeed while this peer has no time for another one."""
        while (left_s := end_s - time.monotonic()) > 0.0 and not self._leaving:
            if self.progress.ask(left_s).epoch > self.local_epoch and not self._passed_over():
                return True
            time.sleep(min(_LOOK_S, max(0.0, end_s - time.monotonic())))
        return False

    def _look_for_others(self, until: Until) -> int:
        if self._others is None:
            return self.tracker.global_progress.num_peers - 1
        return self._others.others_left(self.local_epoch, until)

    def _attempt(self, control: StepControl | None, left_s: float) -> StepControl:
        """Begin a round with a copy of the gradients, in the group of `control` or in a new one.

        Raises NoGroupError when there is no time for a new one.
        """
        if control is None and left_s <= float(self.matchmaking_time or 5.0):
            raise NoGroupError(f"{left_s:.1f} s are left")
        averager: Any = self.grad_averager
        averager.notify_used_averaged_gradients()  # else it warns that nobody used the failed attempt's
        control = control or averager.schedule_step(timeout=left_s)
        return averager.step(control=control, wait=False)

    def prepare_round(self) -> None:
        """Before a step: look for a group that the tracker's estimate would have this peer look for too late."""

    def hold(self, held: bool) -> None:
        """`PunctualTracker.hold`."""
        self.progress.hold(held)

    def take_back_progress(self, timeout_s: float) -> None:
        """Withdraw this peer's progress report; it may not train again."""
        self.progress.shutdown(timeout_s)

    @property
    def round_scheduled(self) -> bool:
        """Whether others may be looking for a group with this peer, or averaging with it."""
        return self.scheduled_grads is not None and not self.scheduled_grads.done()

    def leave_round(self, timeout_s: float) -> None:
        """Before this peer goes: `rounds.leave`."""
        control, self.scheduled_grads = self.scheduled_grads, None
        if control is not None:
            self.withdraw_update()
        leave(control, timeout_s)

    def _last_update(self) -> Sequence[torch.Tensor] | None:
        gradients: Any = self.grad_averager  # Hivemind types it as one that may be missing
        return gradients._averaged_tensors if self._update_is_here else None

    def round_begins(self) -> None:
        """From here on the averaged gradients are the next round's."""
        self._update_is_here = False
        self.state_averager.say(averaging=True)

    def withdraw_update(self) -> None:
        """Before a round that this peer takes no step with: it may be written where the last update is.

        When this returns nobody reads it there any more.
        """
        if self._update_is_here:
            self._update_is_here = False
            self.state_averager.say(averaging=False)

    def round_ended(self, stepped: bool) -> None:
        """The epoch is the next one; `stepped`: with what the gradient averager holds."""
        self._update_is_here = stepped
        self.state_averager.round_ended()
        self._log_lineage()

    def is_astray(self, ahead_too: bool = True) -> bool:
        """Whether other weights count than this peer's. The others are asked once an epoch, in its middle; returns at once.

        Two groups that lost each other in a round may be at one epoch with weights of their own, and would never notice.
        `ahead_too`: False after this peer's round, which others may have taken over before.
        """
        donor, progress = self.state_averager, self.tracker.global_progress
        middle = 2 * progress.samples_accumulated >= progress.target_batch_size
        if self._asked is None and middle and self._asked_at != self.local_epoch:
            self._asked, self._asked_at = donor.ask(), self.local_epoch
        if self._asked is None or not self._asked.done():
            return False
        offers, self._asked = self._asked.result(), None
        offers = [offer for offer in offers if ahead_too or offer.epoch == self.local_epoch]
        return self._asked_at == self.local_epoch and isinstance(
            decide(self.local_epoch, donor.lineage, offers), Get
        )

    def load_state_from_peers(self, joining: bool = False, **kwargs: Any) -> CatchUpResult:
        """`catch_up`, and what was prepared for a round is left."""
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.state_loads += 1
        self.round_begins()
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self._tag_along_with_zero_weight(self.scheduled_grads)
        self.scheduled_grads = None
        result = self.catch_up(joining)
        self._lineage = self.state_averager.lineage
        self._log_lineage()
        return result

    def _log_lineage(self) -> None:
        """Equal at equal epochs: equal weights. benchmarks/robustness.py reads it."""
        _log.info("epoch %d is of lineage %s", self.local_epoch, self._lineage)

    def _tag_along_with_zero_weight(self, control: StepControl) -> None:
        """As Hivemind's; a round without a group is left, not waited for."""
        if control.stage == AveragingStage.LOOKING_FOR_GROUP:
            control.cancel()
            return
        self.withdraw_update()
        super()._tag_along_with_zero_weight(control)

    def catch_up(self, joining: bool) -> CatchUpResult:
        """Take over the others' state; own gradients are dropped.

        `joining`, or `waits_for_rounds`: also wait until none of the newest epoch is in a round. One that others may be
        waiting for in that round must not.

        The lineage is `state_averager.lineage` afterwards. Raises NoStateError and CatchUpError of state/catch_up.py.
        """
        donor, gradients = self.state_averager, self.grad_averager
        assert gradients is not None, "local updates are not what this optimizer is for"
        donor.step(wait_for_delayed_updates=True)
        self._update_is_here = False
        donor.say(averaging=False)
        timeout_s = float(self.averaging_timeout or 60.0)
        limits = Limits(
            without_state_s=self.load_state_timeout if joining else timeout_s,
            round_s=timeout_s if joining or self.waits_for_rounds else 0.0,
        )
        with self.tracker.pause_updates():
            result = catch_up(donor, limits, time.monotonic, time.sleep)
            self.tracker.update_epoch(self.local_epoch)  # what was known of the swarm is fetched anew
            donor.state_sharing_priority = self.local_epoch
            gradients.reset_accumulated_grads_()
            gradients.state_sharing_priority = self.local_epoch
        self._should_check_synchronization_on_update = True
        return result
