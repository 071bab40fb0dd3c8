"""How busy an emulated run keeps this machine: expected CPU seconds of peers, averaging and switch. Pure.

Each figure was measured with real Hivemind peers on two cores, by comparing runs that differ in one thing; 20 % is what
such a figure is good for. The rules that follow from them are in docs/emulated-cloud.md ("Scales").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

HALF = 0.5  # above, packets are late and sleeps stretched as soon as anything else runs
NEARLY_ALL = 0.8  # of all cores: with a reckoning that is good for some 20 % it may be all of them

# Controller, Ray, monitor, store: a quiet geo-b2-nlp used 0.2 cores while its two peers calculated.
REST_CORES = 0.1
PEER_CORES = 0.055  # one peer that reports once a second, at time_scale 1: 0.05 to 0.06, DHT traffic included
AVERAGING_S_PER_GB = 6.4  # Python 4.5, p2pd 1.8: a four-peer run at bytes_scale 20 against 200
SWITCH_S_PER_GB = 35.0  # 15 to 30 us a packet, acknowledgements counted, at the links' MTU of 1500
KERNEL_WINDOWS_SWITCH_S_PER_GB = (
    16.0  # at their links' MTU of 4420: 0.45 of what the same streams cost at 1500
)
MOMENT_S = 1.0  # a shorter burst makes nothing late for long
PART_S = 0.001  # one part of one pair, to its reducer and back


@dataclass(frozen=True, slots=True)
class Round:
    """What one averaging round moves on this machine, and how long that takes here."""

    peers: int
    sent_bytes: float  # by all peers together, after bytes_scale
    parts: int  # a peer sends each other peer
    transfer_s: float  # while parts travel
    epoch_s: float  # the whole epoch, calculation and matchmaking included
    time_scale: float = 1.0
    switch_s_per_gb: float = SWITCH_S_PER_GB


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Expected shares, 1: all of it."""

    epoch: float  # of all cores, mean over an epoch
    averaging: float  # of all cores, while parts travel
    switch: float  # of the one core that the switch can use, while parts travel

    @property
    def under_half(self) -> bool:
        """Whether the host keeps up: over an epoch as a whole, and the switch when it has most to do."""
        return self.epoch < HALF and self.switch < HALF


def host_load(done: Round, cores: int) -> HostLoad:
    """The load of one epoch on so many cores. Raises ValueError without a core."""
    if cores < 1:
        raise ValueError(f"{cores} cores")
    sent_gb, transfer_s = done.sent_bytes / 1e9, max(done.transfer_s, MOMENT_S)
    always = REST_CORES + done.peers * PEER_CORES * done.time_scale
    switch_s = sent_gb * done.switch_s_per_gb
    round_s = sent_gb * AVERAGING_S_PER_GB + switch_s + done.peers * (done.peers - 1) * done.parts * PART_S
    return HostLoad(
        epoch=(always + round_s / max(done.epoch_s, MOMENT_S)) / cores,
        averaging=(always + round_s / transfer_s) / cores,
        switch=switch_s / transfer_s,
    )


def least_scale(load_at: Callable[[float], HostLoad], most: float) -> int | None:
    """The smallest whole bytes_scale up to `most` that keeps the host under half busy; None: no such scale.

    `load_at`: the load at a bytes_scale; never more at a larger one.
    """
    low, high = 1, max(1, math.floor(most))
    if not load_at(high).under_half:
        return None
    while low < high:
        middle = (low + high) // 2
        if load_at(middle).under_half:
            high = middle
        else:
            low = middle + 1
    return low
