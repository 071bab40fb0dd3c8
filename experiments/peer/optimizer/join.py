"""A late peer takes over the swarm's state, and what that cost it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.swarm.members import Member

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Download:
    """The state this peer began with. Nothing was downloaded: zero, and no donor."""

    seconds: float = 0.0
    bytes: int = 0  # of weights, statistics and averaged gradients that arrived, those thrown away included
    donor: str = ""  # VM
    resumed: int = 0  # how often a cut download went on where it was


def take_over(optimizer: SwarmOptimizer, members: Callable[[], Iterable[Member]]) -> Download:
    """Bring this peer to where the swarm is before its first step, outside any epoch and any round.

    Raises NoStateError and CatchUpError of state/catch_up.py.
    """
    result = optimizer.load_state_from_peers(joining=True)
    optimizer.take_round()
    if not result.received:
        return Download()
    donor = next((m.vm for m in members() if m.maddr.endswith(f"/p2p/{result.donor}")), result.donor)
    _log.info("took over epoch %d from %s in %.1f s", optimizer.local_epoch, donor, result.seconds)
    return Download(result.seconds, result.received, donor, result.resumed)
