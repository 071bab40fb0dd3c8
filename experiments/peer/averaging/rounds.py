"""What can become of an averaging round, and who has a say in it."""

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
_LET_GO_S = 5.0  # for the averager's process to end an attempt


Until = Literal["now", "enough answered", "known"]  # how long to look for others


class Others(Protocol):
    """Who else there is: `experiments.peer.swarm.membership.Membership`."""

    @property
    def gone(self) -> Collection[bytes]: ...  # libp2p ids of the dead

    def is_member(self, vm: str, record_key: str, peer_id: str) -> bool: ...  # `members.IsMember`

    def others_training(self, epoch: int) -> int: ...  # at about this epoch, as known

    def others_left(
        self, epoch: int, until: Until = "enough answered"
    ) -> int: ...  # for another attempt at its round, asked for now

    def others_coming(self) -> int: ...  # that take the swarm's state over, as known

    def announce(self, phase: str, epoch: int) -> None: ...


class NoGroupError(Exception):
    """Nobody to average with was found in time, although others are training."""


class TooFewError(AllreduceException):
    """A group was found, and is too small to average in."""


class BehindError(Exception):
    """This peer's parameters are not the swarm's: its gradients are of no use, it needs the state."""


class GivenUpError(Exception):
    """The round could not be averaged in time, by this peer and as far as it knows by nobody."""


@dataclass
class Round:
    """What one call of `SwarmOptimizer.step` did about synchronising."""

    group_size: int = 0  # peers averaged together; 1: alone, or nobody's gradients were used; 0: no round
    state_loads: int = 0
    losses: list[str] = field(default_factory=list)
    swarm_peers: int = 0  # peers the tracker knew of when the round began
    failed: list[str] = field(default_factory=list)  # why attempts failed, in their order
    lost: int = 0  # of these: had begun to average
    # of a round behind calculation (optimizer/overlap.py)
    blocked: bool = False  # it took this call's time: it was begun, waited for or taken over
    hidden_s: float = 0.0  # of the round that ended, in which the peer calculated
    ahead: int = 0  # samples calculated meanwhile: the next epoch's


def result_of(
    control: StepControl, left_s: float, matchmaking_s: float, others_went_on: Callable[[], bool]
) -> Any:
    """An attempt's result, in at most `left_s`. Raises what it failed with, TimeoutError or NoGroupError.

    It does not look for a group for as long as Hivemind does: a peer that was killed may be counted
    for a while, and the survivors of a pair would look for it for minutes; and whoever missed the others'
    round would look until they come to their next.
    """
    began = time.monotonic()
    patience_s = max(3.0 * matchmaking_s, 6.0)
    while (waited_s := time.monotonic() - began) < min(patience_s, left_s):
        try:
            return control.result(min(matchmaking_s, patience_s - waited_s, left_s - waited_s))
        except FutureTimeoutError:
            if control.done():
                raise
        if control.stage == AveragingStage.LOOKING_FOR_GROUP and others_went_on():
            raise NoGroupError("the others have averaged without this peer")
    if control.stage == AveragingStage.LOOKING_FOR_GROUP:
        raise NoGroupError(f"no group within {min(patience_s, left_s):g} s")
    return control.result(max(0.0, began + left_s - time.monotonic()))


def let_go(control: StepControl | None, averager: Any) -> None:
    """End a failed attempt of the `RoundAverager`: until it ends, its process keeps the gradients locked."""
    if control is None or control.done():
        return
    if control.stage in (AveragingStage.LOOKING_FOR_GROUP, AveragingStage.AWAITING_TRIGGER):
        control.cancel()
        return
    averager.give_up()
    try:
        control.result(_LET_GO_S)
    except Exception as error:  # noqa: BLE001 - it was to fail
        _log.info("the attempt ended with %r", error)


def leave(control: StepControl | None, timeout_s: float) -> None:
    """Before this peer goes: a round that has its group is finished with weight 0, any other given up.

    A group that lost a member it was formed with would wait for it, and miss its part of the average.
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
    except Exception as error:  # noqa: BLE001 - whatever became of the round: this peer leaves
        _log.warning("left a round that was under way: %r", error)
