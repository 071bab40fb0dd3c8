"""How a late peer, or one that fell behind, comes to the state that the others have.

One download of the whole state, from the nearest peer that has the newest one. What the others average while it runs
is not downloaded as a state again: their averaged gradients are, a fifth of the bytes with Adam, and this peer takes
the same optimizer steps with them. So a peer whose link carries one averaged gradient in less than an epoch, which
averaging asks of it anyway, is in step at last; one that does not is told so instead of chasing the swarm for ever.
It begins to train when nobody is in the middle of a round, so that the next round is one it can reach.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.peer.state.client import Taken, TakingError
from experiments.peer.state.snapshot_cache import KEPT_UPDATES

_log = logging.getLogger(__name__)

_STATES = 3  # downloads of the whole state, at most
_LOOK_S = 0.5


class NoStateError(Exception):
    """The swarm trains, and nobody gave this peer its state."""


class CatchUpError(Exception):
    """The swarm moves on faster than its state can be downloaded."""


@dataclass(frozen=True)
class Offer:
    """What one peer answered. `oldest_update`: of the averaged gradients it can give, the lowest epoch; 0: none."""

    donor: str  # its libp2p id
    rtt_s: float
    epoch: int
    averaging: bool  # it is in the middle of a round
    oldest_update: int = 0
    lineage: str = ""  # which rounds its weights have been through


@dataclass(frozen=True)
class Get:
    """Download this next, from the first of the donors that gives it."""

    kind: str  # "state" or "update"
    epoch: int  # of an update, the epoch it leads to
    donors: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """A round is under way: this peer could not reach it."""


def decide(epoch: int, lineage: str, offers: Sequence[Offer], updates: bool = True) -> Get | Wait | None:
    """What a peer with these weights does next; None: it has what counts. `updates`: whether those may be tried.

    What counts: the weights of the newest epoch, there those of most peers, of those of the greatest lineage; this
    peer is counted too. So all that have lost each other come to the same.
    """
    known = [(epoch, lineage), *((offer.epoch, offer.lineage) for offer in offers)]
    newest, wanted = max(known, key=lambda one: (one[0], known.count(one), one[1]))
    if newest == 0 or (newest, wanted) == (epoch, lineage):
        return Wait() if any(offer.averaging and offer.epoch == newest for offer in offers) else None
    nearest = sorted(offers, key=lambda offer: (offer.rtt_s, offer.donor))
    update = epoch + 1
    if updates and update <= newest:
        givers = tuple(o.donor for o in nearest if 0 < o.oldest_update <= update <= o.epoch)
        if givers:
            return Get("update", update, givers)
    return Get("state", newest, tuple(o.donor for o in nearest if (o.epoch, o.lineage) == (newest, wanted)))


class Source(Protocol):
    """The swarm and this peer's own weights, as `catch_up` sees them."""

    @property
    def epoch(self) -> int:
        """Of this peer's weights."""
        ...

    @property
    def lineage(self) -> str:
        """Which rounds they have been through."""
        ...

    def offers(self) -> list[Offer]:
        """Ask everybody; who does not answer is not in it."""
        ...

    def fetch(self, get: Get) -> Taken:
        """Download. Raises TakingError."""
        ...

    def use(self, get: Get, taken: Taken) -> None:
        """Take it over. Raises TakingError where it does not fit."""
        ...


@dataclass(frozen=True)
class Limits:
    """Seconds that one may wait."""

    without_state_s: float  # for anybody to give anything
    round_s: float  # for rounds under way, all in all


@dataclass
class Caught:
    """What it took. `donor`: who gave the (last) state, or the updates where there was none; "": nobody was needed."""

    donor: str = ""
    states: int = 0
    updates: int = 0
    resumed: int = 0
    received: int = 0  # bytes
    seconds: float = 0.0  # of downloading


def catch_up(
    source: Source, limits: Limits, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Caught:
    """Until this peer has what the others have and nobody averages.

    Raises NoStateError, and CatchUpError after the third state that was old when it was here.
    """
    caught = Caught()
    since, waited_s = (
        clock(),
        0.0,
    )  # waited for rounds under way, all in all: updates may end in one again and again
    why, updates = "nobody answered", True
    while True:
        asked = clock()
        offers = source.offers()
        next_ = decide(source.epoch, source.lineage, offers, updates)
        if isinstance(next_, Get):
            if next_.kind == "state" and caught.states >= _STATES:
                raise CatchUpError(
                    f"the swarm is at epoch {next_.epoch}, this peer at {source.epoch}: the swarm overtook each of"
                    f" {_STATES} downloads by more than {KEPT_UPDATES} epochs; this link is too slow for the experiment"
                )
            began = clock()
            try:
                taken = source.fetch(next_)
                source.use(next_, taken)
            except TakingError as error:
                why, updates = str(error), False  # these weights may not be what the update belongs to
                _log.warning("%s", error)
            else:
                updates = True
                since = clock()
                _count(caught, next_, taken, since - began)
                continue
        elif next_ is None and offers:
            return caught
        elif isinstance(next_, Wait):
            since = clock()
            waited_s += since - asked + _LOOK_S
            if waited_s >= limits.round_s:
                return caught
        if clock() - since >= limits.without_state_s:
            if not offers and source.epoch > 0:
                _log.warning("nobody is left who could give a state: going on with epoch %d", source.epoch)
                return caught
            raise NoStateError(f"no state within {limits.without_state_s:g} s: {why}")
        sleep(_LOOK_S)


def _count(caught: Caught, get: Get, taken: Taken, seconds: float) -> None:
    state = get.kind == "state"
    caught.states += state
    caught.updates += not state
    if state or not caught.states:
        caught.donor = str(taken.donor)
    caught.resumed += taken.resumed
    caught.received += taken.received
    caught.seconds += seconds
    _log.info("took over %s %d from %s: %d bytes", get.kind, get.epoch, taken.donor, taken.received)
