"""Peers that begin together must begin with the same weights: nothing would make them equal later."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.peer.config import PeerConfig
from experiments.peer.swarm.members import Member


class StartWeightsError(Exception):
    """This peer's start weights differ from those of the lowest slot."""


def check_start_weights(config: PeerConfig, digest: str, members: Sequence[Member]) -> None:
    """Compare with the peers that have not finished an epoch. Raises StartWeightsError.

    Peers that join later download the state and are not compared. `digest`: of this peer's weights.
    """
    starting = [m for m in members if m.epoch == 0 and m.phase in ("ready", "training") and m.weights]
    lowest = min(starting, key=lambda member: (member.slot, member.vm), default=None)
    if lowest is None or lowest.slot >= config.slot or lowest.weights == digest:
        return
    raise StartWeightsError(
        f"the start weights of {config.vm} differ from those of {lowest.vm} ({digest} and {lowest.weights}), although both "
        f"were built with seed {config.seed}; look for randomness other than the seed in the code that builds the model "
        "(numpy, time, the order of a set), and for different versions of code, files or packages"
    )
