"""Download of the swarm's state by a joining peer, with its statistics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.swarm.members import Member

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Download:
    """Statistics of the initial download; zeros and no donor if nothing was downloaded."""

    seconds: float = 0.0
    bytes: int = 0  # received weights, optimizer statistics and averaged gradients, including discarded ones
    donor: str = ""  # name of the VM
    resumed: int = 0  # number of times an interrupted download was resumed


def take_over(optimizer: SwarmOptimizer, members: Callable[[], Iterable[Member]]) -> Download:
    """Load the swarm's state before this peer's first step, outside any epoch and round.

    Raises NoStateError and CatchUpError of state/catch_up.py.
    """
    result = optimizer.load_state_from_peers(joining=True)
    optimizer.take_round()
    if not result.received:
        return Download()
    donor = next((m.vm for m in members() if m.maddr.endswith(f"/p2p/{result.donor}")), result.donor)
    _log.info("loaded the state of epoch %d from %s in %.1f s", optimizer.local_epoch, donor, result.seconds)
    return Download(result.seconds, result.received, donor, result.resumed)
