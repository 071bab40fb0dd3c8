"""Outcomes of an averaging round, and functions to wait for, end and leave one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.partition import AllreduceException

_log = logging.getLogger(__name__)
_END_S = 5.0  # for the averager's process to end an attempt


Until = Literal["now", "enough answered", "known"]  # when to stop looking for others


class Others(Protocol):
    """The other peers: `experiments.peer.swarm.membership.Membership`."""

    @property
    def gone(self) -> Collection[bytes]: ...  # libp2p ids of dead peers

    def is_member(self, vm: str, record_key: str, peer_id: str) -> bool: ...  # `members.IsMember`

    def others_training(self, epoch: int) -> int: ...  # at about this epoch, as currently known

    # expected in another attempt at the epoch's round; checks which peers are alive
    def others_expected(self, epoch: int, until: Until = "enough answered") -> int: ...

    def others_joining(self) -> int: ...  # about to download the swarm's state, as currently known

    def announce(self, phase: str, epoch: int) -> None: ...


class NoGroupError(Exception):
    """No group was found in time, although others are training."""


class TooFewError(AllreduceException):
    """The group that was found is too small."""


class BehindError(Exception):
    """This peer's parameters are not the swarm's: it must load the state, and its gradients are useless."""


class GivenUpError(Exception):
    """The round could not be averaged in time, by this peer or, as far as it knows, by any other."""


@dataclass
class Round:
    """Synchronisation done by one call of `SwarmOptimizer.step`."""

    group_size: int = 0  # peers averaged together; 1: alone, or no gradients were used; 0: no round
    state_loads: int = 0
    losses: list[str] = field(default_factory=list)
    swarm_peers: int = 0  # peers known to the tracker when the round began
    failed: list[str] = field(default_factory=list)  # reasons of failed attempts, in order
    lost: int = 0  # number of failed attempts that had begun to average
    # of a round that overlaps with calculation (optimizer/overlap.py)
    blocked: bool = False  # the call spent time on the round: it was begun, awaited or applied
    hidden_s: float = 0.0  # part of the finished round during which the peer calculated
    ahead: int = 0  # samples calculated meanwhile, for the next epoch


def result_of(
    control: StepControl, left_s: float, matchmaking_s: float, others_advanced: Callable[[], bool]
) -> Any:
    """Wait for an attempt's result, at most `left_s`. Raises the attempt's error, TimeoutError or NoGroupError.

    Matchmaking ends earlier than Hivemind's: a killed peer may still be counted for a while, and the survivor of a pair
    would look for it for minutes; and a peer that missed the others' round would look until their next one.
    """
    began = time.monotonic()
    patience_s = max(3.0 * matchmaking_s, 6.0)
    while (waited_s := time.monotonic() - began) < min(patience_s, left_s):
        try:
            return control.result(min(matchmaking_s, patience_s - waited_s, left_s - waited_s))
        except FutureTimeoutError:
            if control.done():
                raise
        if control.stage == AveragingStage.LOOKING_FOR_GROUP and others_advanced():
            raise NoGroupError("the others have averaged without this peer")
    if control.stage == AveragingStage.LOOKING_FOR_GROUP:
        raise NoGroupError(f"no group within {min(patience_s, left_s):g} s")
    return control.result(max(0.0, began + left_s - time.monotonic()))


def end_attempt(control: StepControl | None, averager: Any) -> None:
    """End a failed attempt of the `RoundAverager`, whose process otherwise keeps the gradients locked."""
    if control is None or control.done():
        return
    if control.stage in (AveragingStage.LOOKING_FOR_GROUP, AveragingStage.AWAITING_TRIGGER):
        control.cancel()
        return
    averager.give_up()
    try:
        control.result(_END_S)
    except Exception as error:  # noqa: BLE001 - it is meant to fail
        _log.info("the attempt ended with %r", error)


def leave(control: StepControl | None, timeout_s: float) -> None:
    """Leave a round before this peer shuts down: finish it with weight 0 if it has its group, else cancel it.

    A group that lost one of its members would wait for it and miss its part of the average.
    """
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
    except Exception as error:  # noqa: BLE001 - this peer leaves, whatever the round's outcome
        _log.warning("left a running round: %r", error)
