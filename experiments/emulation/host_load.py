"""Expected load of the host during an emulated run: CPU seconds of peers, averaging and switch. Pure.

Each constant was measured with real Hivemind peers on two cores, by comparing runs that differ in one parameter, and is
accurate to about 20 %. The rules derived from them are in docs/emulated-cloud.md ("Scales").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

HALF = 0.5  # above, packets are late and sleeps too long as soon as anything else runs
NEARLY_ALL = 0.8  # of all cores; with an error of about 20 % it may be all of them

# Controller, Ray, monitor, store: an undisturbed geo-b2-nlp used 0.2 cores while its two peers calculated.
REST_CORES = 0.1
PEER_CORES = 0.055  # one peer that reports once a second, at time_scale 1: 0.05 to 0.06, DHT traffic included
AVERAGING_S_PER_GB = 6.4  # Python 4.5, p2pd 1.8: a four-peer run at bytes_scale 20 against 200
SWITCH_S_PER_GB = 35.0  # 15 to 30 us per packet, acknowledgements included, at the links' MTU of 1500
KERNEL_WINDOWS_SWITCH_S_PER_GB = 16.0  # at an MTU of 4420: 0.45 of the cost of the same streams at 1500
MIN_BURST_S = 1.0  # shorter bursts do not delay anything for long
PART_S = 0.001  # one part of one pair, to its reducer and back


@dataclass(frozen=True, slots=True)
class Round:
    """Traffic of one averaging round on this machine, and its duration here."""

    peers: int
    sent_bytes: float  # by all peers together, after bytes_scale
    parts: int  # from each peer to each other
    transfer_s: float  # duration of the transfers
    epoch_s: float  # the whole epoch, calculation and matchmaking included
    time_scale: float = 1.0
    switch_s_per_gb: float = SWITCH_S_PER_GB


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Expected load as shares; 1: fully busy."""

    epoch: float  # of all cores, mean over an epoch
    averaging: float  # of all cores, during transfers
    switch: float  # of the one core that the switch can use, during transfers

    @property
    def under_half(self) -> bool:
        """Whether the host keeps up: on average over an epoch, and the switch during transfers."""
        return self.epoch < HALF and self.switch < HALF


def host_load(done: Round, cores: int) -> HostLoad:
    """Return the load of one epoch on a number of cores. Raises ValueError if that is less than 1."""
    if cores < 1:
        raise ValueError(f"cores must be at least 1, not {cores}")
    sent_gb, transfer_s = done.sent_bytes / 1e9, max(done.transfer_s, MIN_BURST_S)
    always = REST_CORES + done.peers * PEER_CORES * done.time_scale
    switch_s = sent_gb * done.switch_s_per_gb
    round_s = sent_gb * AVERAGING_S_PER_GB + switch_s + done.peers * (done.peers - 1) * done.parts * PART_S
    return HostLoad(
        epoch=(always + round_s / max(done.epoch_s, MIN_BURST_S)) / cores,
        averaging=(always + round_s / transfer_s) / cores,
        switch=switch_s / transfer_s,
    )


def smallest_scale(load_at: Callable[[float], HostLoad], most: float) -> int | None:
    """Return the smallest whole bytes_scale up to `most` that keeps the load under one half. None if there is none.

    `load_at`: the load at a bytes_scale, which must not grow with the scale.
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
