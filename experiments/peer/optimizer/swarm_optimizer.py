"""A hivemind.Optimizer whose rounds end in time and leave all peers with the same parameters.

It also replaces Hivemind's state download (state/catch_up.py, state/server.py).
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
    end_attempt,
    leave,
    result_of,
)
from experiments.peer.optimizer.progress_tracker import PunctualTracker
from experiments.peer.state.catch_up import CatchUpResult, Get, Limits, catch_up, decide
from experiments.peer.state.server import StateDonor

__all__ = ["Round", "SwarmOptimizer"]

_log = logging.getLogger(__name__)
_PASSED_OVER = "passed over"  # lineage event of a round without a step
_LEAST_S = 1.0  # minimum duration of an attempt, so that immediate failures are not retried at once
_GIVE_UP_S, _LOOK_S = 5.0, 0.25  # timeout of waiting for the others' step, and DHT query period meanwhile
_LAST_RESORT = 2 / 3  # of the averaging timeout: from then on any group is accepted


class SwarmOptimizer(hivemind.Optimizer):
    """Retries failed rounds with the same gradients, and never takes a step that the others do not take.

    A round ends within `averaging_timeout` in one of four ways: all results have arrived (the optimizer steps); no other
    peer trains (it steps with its own mean gradient); the others advanced without this peer (it loads their state); the
    round is given up, and the epoch ends without a step on all peers for which it failed.

    With `reuse_grad_buffers=True, offload_optimizer=False`, Hivemind 1.1.12 steps with the *sum* of the accumulated
    gradients if it is alone and has no pre-scheduled round; this class uses their mean.

    The state is served and downloaded with own RPCs, since Hivemind's download

    - picks a random donor, and after a timeout begins another download while the old ones continue;
    - sends weights while a step changes them;
    - considers a peer with the state of epoch e up to date when the others are at e + 1: without parameter averaging its
      weights lack an update permanently;
    - never finishes if an epoch is shorter than a download.
    """

    state_averager: StateDonor
    # whether catching up waits for running rounds, since the others do not wait for this peer
    waits_for_rounds = False
    on_gradients_taken: Callable[[], None] | None = None  # called before a round takes the gradients
    news_s = 0.0  # wait after a failed attempt, so that peers for which it succeeded have reported it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.round = Round()
        self.sync_work_s = 0.0  # emulated: the real VM's own work around a round
        self.on_round_begins: Callable[[], None] | None = None
        self._others: Others | None = None  # None: the tracker's count is all there is
        self._on_retry: Callable[[str], None] = lambda reason: None
        self._lineage, self._version = FIRST, PeerVersion(0, FIRST, "")
        self._local_gradients_loaded = False
        self._update_is_here = False  # the gradient averager holds the gradients of the last step
        self._asked: Any = None  # future of the running query of the others' lineages
        self._asked_at = -1  # epoch of that query
        self._any_group_at_s = float("inf")  # time from which this round accepts any group
        self._leaving = False
        self.stopped: Callable[[], bool] = lambda: False  # whether to stop waiting for a round
        super().__init__(*args, **kwargs)
        averager: Any = self.grad_averager
        averager.version = self._next_version
        self.state_averager.next_lineage = lambda: self._lineage

    def _make_state_averager(self, **kwargs: Any) -> StateDonor:
        """Like Hivemind's, which hard-codes its class."""
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
        """Use `others` to find training and dead peers; call `on_retry` with the reason of each failed attempt."""
        self._others, self._on_retry = others, on_retry
        self.progress.gone = lambda: others.gone
        self.progress.is_member = others.is_member

    @property
    def torch_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that steps with the averaged gradients."""
        return self.state_averager.optimizer

    @property
    def lineage(self) -> str:
        """Hash over the rounds that led to the present weights."""
        return self.state_averager.lineage

    def start_at(self, epoch: int, lineage: str) -> None:
        """Go on from weights and statistics of this epoch and lineage, which were just loaded. Call it before the first step."""
        self._lineage = lineage
        self.state_averager.start_at(epoch, lineage)
        with self.tracker.pause_updates():
            self._epoch_begins()
        self._log_lineage()

    def take_round(self) -> Round:
        """Return what happened since the last call."""
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
        """Whether the others have ended an epoch without this peer.

        Hivemind lets a peer that is one epoch behind step with its own gradients and considers it caught up.
        """
        return self.has_diverged() or self.local_epoch < self.tracker.global_epoch

    def _update_global_epoch(self, grad_scaler: Any) -> None:
        # After a standstill this peer's own estimate says that the epoch is over. A peer that knows of no other one asks
        # before it steps alone: in short first epochs, others may have begun to train since the last fetch.
        if self.progress.stale or not self._others_expected():
            with self.tracker.pause_updates():
                self.progress.ask(float(self.matchmaking_time or 5.0))
        if self._should_load_state_from_peers():
            self.load_state_from_peers()
            return
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.swarm_peers = self.tracker.global_progress.num_peers
        self.round_begins()
        if self.on_gradients_taken is not None:
            self.on_gradients_taken()
        self._run_round(grad_scaler)

    def _run_round(self, grad_scaler: Any) -> None:
        """Average the epoch's gradients and transition to the next epoch."""
        try:
            super()._update_global_epoch(grad_scaler)
        except BehindError as error:
            self._catch_up_after(error)
        except GivenUpError as error:
            with self.tracker.pause_updates():
                self._give_up(error)
            self.round_ended(stepped=False)
        else:
            self.round_ended(stepped=True)

    def _catch_up_after(self, error: BehindError) -> None:
        _log.warning("the others advanced without this peer: %s", error)
        self.load_state_from_peers()

    def _give_up(self, error: GivenUpError) -> None:
        """End the epoch without a step, as all peers do for which the round failed. For use inside `pause_updates`."""
        self.round.losses.append(f"round given up: gradients dropped ({error})")
        _log.warning("the round is given up: %s", error)
        averager: Any = self.grad_averager
        self.round.group_size = 1
        self._lineage = extended(self._lineage, _PASSED_OVER)
        self.state_averager.step(increment_epoch=True)
        self._epoch_begins()
        averager.reset_accumulated_grads_()

    def _epoch_begins(self) -> None:
        """Report to the swarm that the weights are those of a new epoch."""
        self.tracker.update_epoch(new_epoch=self.state_averager.local_epoch)
        self.state_averager.state_sharing_priority = self.local_epoch

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        self._local_gradients_loaded = False
        if self._others_expected():
            self._first_attempt()
            return True
        self.scheduled_grads = self._take_scheduled()
        super()._begin_averaging_gradients(grad_scaler)  # without other peers it cancels the scheduled round
        self._step_alone()
        # False would make Hivemind load the gradients into the averager again, divided by their number once more, and
        # that is what a peer that misses this step would download
        return True

    def _others_expected(self) -> bool:
        """Whether another peer may take part in the round, as currently known."""
        return self.tracker.global_progress.num_peers > 1 or self._others_known() > 0

    def _maybe_schedule_gradient_averaging(self) -> None:
        """Like Hivemind's, but only if another peer may train: looking for a group costs CPU time until the epoch ends."""
        if self._others_expected():
            super()._maybe_schedule_gradient_averaging()

    def _take_scheduled(self) -> StepControl | None:
        """Return the pre-scheduled round if it is still usable."""
        control, self.scheduled_grads = self.scheduled_grads, None
        early = control is not None and (control.triggered or control.done())
        return None if early else control  # None: the attempt failed early and a new one begins

    def _first_attempt(self) -> None:
        control = self._take_scheduled()
        try:
            self.scheduled_grads = self._attempt(control, float(self.averaging_timeout or 60.0))
        except Exception as error:  # noqa: BLE001 - whatever the error is, it is retried
            _log.warning("could not begin an averaging attempt: %r", error)

    def _step_alone(self) -> None:
        self.round.group_size = 1
        if not self._local_gradients_loaded:
            self._load_local_gradients_into_optimizer()
        self._lineage = alone(self._lineage, self.dht.peer_id)

    def _load_local_gradients_into_optimizer(self) -> None:
        """Round local gradients through the wire format before stepping: peers that download this update later receive the
        rounded values only.

        Without rounding, a gradient that is 0 in float16 would still move a weight here, in Adam's first step as far as
        any other.
        """
        _log.info("Proceeding with local gradients")
        averager: Any = self.grad_averager
        averager.load_accumulators_into_averager_()
        with averager.get_tensors() as gradients:
            self.state_averager.round_for_update(gradients)
        self._load_averaged_gradients_into_optimizer_()
        self._local_gradients_loaded = True

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl | None) -> None:
        """Average and load the result into the optimizer, unless this peer steps alone. Raises as `_average`."""
        if self._local_gradients_loaded:
            return
        group = self._average(maybe_step_control)
        if group is None:
            self._step_alone()
        else:
            self._take_over(group)

    def _average(self, control: StepControl | None) -> dict[Any, PeerVersion | None] | None:
        """Average, retrying while there is time. Returns the versions of the group; None if no other peer trains.

        Raises BehindError or GivenUpError, with the gradients unchanged.
        """
        limit_s = float(self.averaging_timeout or 60.0)
        give_up_at = time.monotonic() + limit_s
        self._any_group_at_s = give_up_at - (1.0 - _LAST_RESORT) * limit_s
        while True:
            began = time.monotonic()
            try:
                control = self.scheduled_grads = control or self._attempt(None, give_up_at - time.monotonic())
                group = result_of(
                    control,
                    give_up_at - time.monotonic(),
                    self.matchmaking_time or 5.0,
                    self._others_advanced,
                )
            except Exception as error:  # noqa: BLE001 - any failure of an attempt is handled below
                too_few = isinstance(error, TooFewError)
                reason = f"averaging failed ({type(error).__name__}: {error})"
                _log.warning("an averaging attempt failed: %r", error)
                # Hivemind raises this type when an all-reduce fails
                self.round.lost += isinstance(error, MatchmakingException)
            else:
                return self._of_this_lineage(group)
            end_attempt(control, self.grad_averager)
            control = None
            self.round.failed.append(reason)
            if self._leaving:
                raise GivenUpError(f"this peer leaves; {reason}")
            time.sleep(self.news_s)
            # Check the others before querying the DHT, whose calls wait for silent peers. The check must be complete if
            # epochs are reported before the weights are available: an epoch reported by a peer that then died has no
            # weights. After a too small group it must be short: small groups would never merge if each checked first.
            until: Until = "known" if self.news_s > 0.0 else "now" if too_few else "enough answered"
            others = self._look_for_others(until)
            if self._others_advanced(_LEAST_S if too_few else None):
                raise GivenUpError(reason) if self._others_gave_up() else BehindError(reason)
            if not others:
                return None
            time.sleep(max(0.0, began + _LEAST_S - time.monotonic()))
            if give_up_at - time.monotonic() < float(self.matchmaking_time or 5.0):
                if self._others_advance_before(give_up_at):
                    raise BehindError(reason)
                raise GivenUpError(reason)
            self._on_retry(reason)

    def _of_this_lineage(self, group: dict[Any, Any]) -> dict[Any, PeerVersion | None]:
        """Parse the versions of the group's members. Raises BehindError if its average is for other parameters."""
        versions = {peer: parse_version(value) for peer, value in group.items()}
        if astray(versions, self._version):
            self._wait_for_epoch(1 + max(one.epoch for one in versions.values() if one is not None))
            raise BehindError("this peer's parameters have another lineage than the group's")
        return versions

    def _take_over(self, group: dict[Any, PeerVersion | None]) -> None:
        """Load the group's average."""
        self._lineage = after_round(group, self._version)
        self.round.group_size = len(group)
        _log.info("Averaged gradients with %d peers", len(group))
        self._load_averaged_gradients_into_optimizer_()
        # Within the step, where the tracker's estimate of the step rate is paused. Sleeping after the step made every
        # estimate of the epoch's end late, and averaging waited one step longer for its schedule.
        time.sleep(self.sync_work_s)

    def _wait_for_epoch(self, epoch: int) -> None:
        """Wait until a peer has reached the epoch, so that its state can be loaded."""
        give_up_at = time.monotonic() + self.sync_work_s + _GIVE_UP_S
        while self.progress.ask().epoch < epoch and time.monotonic() < give_up_at:
            time.sleep(_LOOK_S)

    def _others_advanced(self, limit_s: float | None = None) -> bool:
        """Whether the others are at a later epoch, as far as the DHT responds in time. It may wait for silent peers; the
        next attempt asks again.
        """
        limit_s = float(self.matchmaking_time or 5.0) if limit_s is None else limit_s
        return self.progress.ask(limit_s).epoch > self.local_epoch

    def _others_gave_up(self) -> bool:
        """Whether the others only gave up this epoch's round, so that they have no newer weights."""
        passed = extended(self._lineage, _PASSED_OVER)
        newer = [one.lineage for one in self.state_averager.offers() if one.epoch > self.local_epoch]
        return bool(newer) and all(lineage == passed for lineage in newer)

    def _others_advance_before(self, end_s: float) -> bool:
        """Wait whether the others' last attempt succeeds when this peer has no time for another one."""
        while (left_s := end_s - time.monotonic()) > 0.0 and not self._leaving:
            if self.progress.ask(left_s).epoch > self.local_epoch and not self._others_gave_up():
                return True
            time.sleep(min(_LOOK_S, max(0.0, end_s - time.monotonic())))
        return False

    def _look_for_others(self, until: Until) -> int:
        if self._others is None:
            return self.tracker.global_progress.num_peers - 1
        return self._others.others_expected(self.local_epoch, until)

    def _attempt(self, control: StepControl | None, left_s: float) -> StepControl:
        """Begin an attempt with a copy of the gradients, in the group of `control` or in a new one.

        Raises NoGroupError if there is no time for a new group.
        """
        if control is None and left_s <= float(self.matchmaking_time or 5.0):
            raise NoGroupError(f"{left_s:.1f} s are left")
        averager: Any = self.grad_averager
        averager.notify_used_averaged_gradients()  # otherwise it warns that the failed attempt's were not used
        control = control or averager.schedule_step(timeout=left_s)
        return averager.step(control=control, wait=False)

    def prepare_round(self) -> None:
        """Hook before each step for scheduling a round that the tracker's estimate would schedule too late."""

    def hold(self, held: bool) -> None:
        """See `PunctualTracker.hold`."""
        self.progress.hold(held)

    def withdraw_progress(self, timeout_s: float) -> None:
        """Withdraw this peer's progress report. It must not train afterwards."""
        self.progress.shutdown(timeout_s)

    @property
    def round_scheduled(self) -> bool:
        """Whether others may be looking for a group with this peer, or averaging with it."""
        return self.scheduled_grads is not None and not self.scheduled_grads.done()

    def leave_round(self, timeout_s: float) -> None:
        """Leave the running round before this peer shuts down; see `rounds.leave`."""
        control, self.scheduled_grads = self.scheduled_grads, None
        if control is not None:
            self.withdraw_update()
        leave(control, timeout_s)

    def _last_update(self) -> Sequence[torch.Tensor] | None:
        gradients: Any = self.grad_averager  # Hivemind types it as one that may be missing
        return gradients._averaged_tensors if self._update_is_here else None

    def round_begins(self) -> None:
        """Call when a round begins: the averager's gradients belong to the new round from here on."""
        self._update_is_here = False
        self.state_averager.say(averaging=True)

    def withdraw_update(self) -> None:
        """Stop serving the last update before a round in which this peer takes no step, since that round may overwrite it.

        When this returns, the update is no longer being read.
        """
        if self._update_is_here:
            self._update_is_here = False
            self.state_averager.say(averaging=False)

    def round_ended(self, stepped: bool) -> None:
        """Call when the epoch has advanced. `stepped`: whether with the gradients that the averager holds."""
        self._update_is_here = stepped
        self.state_averager.round_ended()
        self._log_lineage()

    def has_diverged(self, ahead_too: bool = True) -> bool:
        """Whether the swarm converges on other weights than this peer's. Returns at once.

        The others are asked once per epoch, in its middle. Otherwise two groups that lost each other in a round could stay
        at the same epoch with different weights, unnoticed. `ahead_too`: also consider peers at later epochs; False right
        after this peer's round, whose result others may already have applied.
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
        """Leave a prepared round and `catch_up`."""
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
        """Log the lineage: the same lineage at the same epoch means equal weights. Parsed by benchmarks/robustness.py."""
        _log.info("epoch %d is of lineage %s", self.local_epoch, self._lineage)

    def _tag_along_with_zero_weight(self, control: StepControl) -> None:
        """Like Hivemind's, but a round without a group is cancelled instead of awaited."""
        if control.stage == AveragingStage.LOOKING_FOR_GROUP:
            control.cancel()
            return
        self.withdraw_update()
        super()._tag_along_with_zero_weight(control)

    def catch_up(self, joining: bool) -> CatchUpResult:
        """Load the swarm's state and drop this peer's gradients.

        If `joining` or `waits_for_rounds`, also wait until no peer of the newest epoch is in a round. A peer for which
        others may be waiting in that round must not wait.

        Afterwards the lineage is `state_averager.lineage`. Raises NoStateError and CatchUpError of state/catch_up.py.
        """
        donor, gradients = self.state_averager, self.grad_averager
        assert gradients is not None, "this optimizer does not support local updates"
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
            self.tracker.update_epoch(self.local_epoch)  # fetches the swarm's progress again
            donor.state_sharing_priority = self.local_epoch
            gradients.reset_accumulated_grads_()
            gradients.state_sharing_priority = self.local_epoch
        self._should_check_synchronization_on_update = True
        return result
