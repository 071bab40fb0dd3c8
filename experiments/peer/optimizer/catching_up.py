"""hivemind.Optimizer that gives and takes the swarm's state our way (state/catch_up.py, state/server.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl

from experiments.peer.averaging.lineage import FIRST
from experiments.peer.averaging.rounds import Round
from experiments.peer.state.catch_up import Caught, Get, Limits, catch_up, decide
from experiments.peer.state.server import StateDonor

_log = logging.getLogger(__name__)


class CatchingUp(hivemind.Optimizer):
    """Replaces Hivemind's download, which

    - picks a donor at random, and after a time-out begins one more download while the old ones go on;
    - hands out weights while a step changes them;
    - calls a peer with the state of epoch e, once the others are at e + 1, up to date: its weights lack an update
      for ever where parameters are not averaged;
    - downloads for ever where an epoch is shorter than a download.
    """

    state_averager: StateDonor
    round: Round
    on_round_begins: Callable[[], None] | None
    _lineage = FIRST
    waits_for_rounds = False  # whether nobody waits for one that fell behind until it is back
    _update_is_here = False  # the gradient averager holds what the last step was made with
    _asked: Any = None  # the question under way
    _asked_at = -1  # the epoch it is about

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

    def load_state_from_peers(self, joining: bool = False, **kwargs: Any) -> Caught:
        """`catch_up`, and what was prepared for a round is left."""
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.state_loads += 1
        self.round_begins()
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self._tag_along_with_zero_weight(self.scheduled_grads)
        self.scheduled_grads = None
        caught = self.catch_up(joining)
        self._lineage = self.state_averager.lineage
        self._log_lineage()
        return caught

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

    def catch_up(self, joining: bool) -> Caught:
        """Take over what the others have; own gradients are dropped.

        `joining`, or `waits_for_rounds`: also wait until none of the newest epoch is in a round. One that others may be
        waiting for in that round must not.

        The lineage of what is here then is `state_averager.lineage`. Raises chase.NoStateError, chase.ChaseError.
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
            caught = catch_up(donor, limits, time.monotonic, time.sleep)
            self.tracker.update_epoch(self.local_epoch)  # what was known of the swarm is fetched anew
            donor.state_sharing_priority = self.local_epoch
            gradients.reset_accumulated_grads_()
            gradients.state_sharing_priority = self.local_epoch
        self._should_check_synchronization_on_update = True
        return caught
