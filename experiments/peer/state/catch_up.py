"""Brings a joining peer, or one that fell behind, to the state of the swarm.

The whole state is downloaded once, from the nearest peer that has the newest one. For rounds averaged meanwhile, the
averaged gradients are downloaded instead of another state (with Adam a fifth of the bytes), and this peer takes the
same optimizer steps with them. A peer whose link can transfer one averaged gradient in less than an epoch, which
averaging requires anyway, therefore catches up; a slower one gets an error instead of downloading indefinitely. The
peer starts to train when no round is running, so that it can take part in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.peer.state.client import DownloadError, ReceivedBlob
from experiments.peer.state.snapshot_cache import KEPT_UPDATES

_log = logging.getLogger(__name__)

_STATES = 3  # maximum downloads of the whole state
_LOOK_S = 0.5


class NoStateError(Exception):
    """The swarm trains, but no peer provided its state."""


class CatchUpError(Exception):
    """The swarm advances faster than its state can be downloaded."""


@dataclass(frozen=True)
class Offer:
    """A peer's response to the request for its state."""

    donor: str  # its libp2p id
    rtt_s: float
    epoch: int
    averaging: bool  # a round is running there
    oldest_update: int = 0  # lowest epoch of the averaged gradients it can provide; 0: none
    lineage: str = ""  # hash over the rounds that led to its weights


@dataclass(frozen=True)
class Get:
    """The next download, from the first of the donors that provides it."""

    kind: str  # "state" or "update"
    epoch: int  # of an update, the epoch it leads to
    donors: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """A round is running that this peer is too late for."""


def decide(epoch: int, lineage: str, offers: Sequence[Offer], updates: bool = True) -> Get | Wait | None:
    """Decide what a peer with these weights does next; None: it is up to date. `updates`: whether updates may be tried.

    The version to converge on: newest epoch, then majority (including this peer), then largest lineage. So groups that
    lost contact with each other all choose the same.
    """
    known = [(epoch, lineage), *((offer.epoch, offer.lineage) for offer in offers)]
    newest, target = max(known, key=lambda one: (one[0], known.count(one), one[1]))
    if newest == 0 or (newest, target) == (epoch, lineage):
        return Wait() if any(offer.averaging and offer.epoch == newest for offer in offers) else None
    nearest = sorted(offers, key=lambda offer: (offer.rtt_s, offer.donor))
    update = epoch + 1
    if updates and update <= newest:
        donors = tuple(o.donor for o in nearest if 0 < o.oldest_update <= update <= o.epoch)
        if donors:
            return Get("update", update, donors)
    return Get("state", newest, tuple(o.donor for o in nearest if (o.epoch, o.lineage) == (newest, target)))


class Source(Protocol):
    """The swarm and this peer's own weights, as `catch_up` sees them."""

    @property
    def epoch(self) -> int:
        """Epoch of this peer's weights."""
        ...

    @property
    def lineage(self) -> str:
        """Hash over the rounds that led to this peer's weights."""
        ...

    def offers(self) -> list[Offer]:
        """Ask all peers; those that do not respond are left out."""
        ...

    def fetch(self, get: Get) -> ReceivedBlob:
        """Download. Raises DownloadError."""
        ...

    def use(self, get: Get, received: ReceivedBlob) -> None:
        """Load a download into the weights. Raises DownloadError if it does not fit."""
        ...


@dataclass(frozen=True)
class Limits:
    """Maximum waiting times in seconds."""

    without_state_s: float  # for any peer to provide anything
    round_s: float  # for running rounds, in total


@dataclass
class CatchUpResult:
    """Statistics of one catch-up."""

    donor: str = ""  # of the last state, or of the updates if there was no state; "": nothing was needed
    states: int = 0
    updates: int = 0
    resumed: int = 0
    received: int = 0  # bytes
    seconds: float = 0.0  # spent downloading


def catch_up(
    source: Source, limits: Limits, clock: Callable[[], float], sleep: Callable[[float], None]
) -> CatchUpResult:
    """Download until this peer is up to date and no round is running.

    Raises NoStateError, and CatchUpError if the third downloaded state was outdated on arrival.
    """
    result = CatchUpResult()
    # The total wait for running rounds is limited: updates may again and again end in the next round.
    since, waited_s = clock(), 0.0
    why, updates = "no peer responded", True
    while True:
        asked = clock()
        offers = source.offers()
        next_ = decide(source.epoch, source.lineage, offers, updates)
        if isinstance(next_, Get):
            if next_.kind == "state" and result.states >= _STATES:
                raise CatchUpError(
                    f"the swarm is at epoch {next_.epoch}, this peer at {source.epoch}: during each of {_STATES} state"
                    f" downloads the swarm advanced by more than {KEPT_UPDATES} epochs; this link is too slow for the"
                    " experiment"
                )
            began = clock()
            try:
                received = source.fetch(next_)
                source.use(next_, received)
            except DownloadError as error:
                why, updates = str(error), False  # the update may belong to other weights
                _log.warning("%s", error)
            else:
                updates = True
                since = clock()
                _count(result, next_, received, since - began)
                continue
        elif next_ is None and offers:
            return result
        elif isinstance(next_, Wait):
            since = clock()
            waited_s += since - asked + _LOOK_S
            if waited_s >= limits.round_s:
                return result
        if clock() - since >= limits.without_state_s:
            if not offers and source.epoch > 0:
                _log.warning("no peer is left to provide a state: continuing with epoch %d", source.epoch)
                return result
            raise NoStateError(f"no state within {limits.without_state_s:g} s: {why}")
        sleep(_LOOK_S)


def _count(result: CatchUpResult, get: Get, received: ReceivedBlob, seconds: float) -> None:
    state = get.kind == "state"
    result.states += state
    result.updates += not state
    if state or not result.states:
        result.donor = str(received.donor)
    result.resumed += received.resumed
    result.received += received.received
    result.seconds += seconds
    _log.info("loaded %s %d from %s: %d bytes", get.kind, get.epoch, received.donor, received.received)
