"""Seconds of one averaging round of the butterfly all-reduce, from its pairs, paths and VMs. Pure.

Each peer reduces one of n equal parts: it receives that part from the n - 1 others and sends each of them the average.
So each directed pair carries 2 / n of a gradient. A part is averaged when it has arrived from every sender, so all
streams keep the pace of the slowest (`benchmarks/calibrate.py` found this in the logs of B).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from cloud.networks import Network, PathModel
from metrics.epochs.scaling import PACKET_PER_LOAD


@dataclass(frozen=True, slots=True)
class Transfer:
    """The exchange of one round without slow spells."""

    seconds: float
    limit: str  # "path", "vm" (its processing) or "none" (one peer)
    where: str  # the slowest pair of locations, or "each VM"
    spells: Mapping[float, int]  # progress in a slow spell relative to the usual one -> pairs of VMs with it


def transfer(
    locations: Sequence[str],
    gradient_bytes: float,
    network: Network,
    model: PathModel,
    processing_bps: float,
) -> Transfer:
    """Return the transfer of one gradient of `gradient_bytes` among peers at `locations` (cloud/region/zone).

    The seconds are the larger of: a pair's payload bits / the slowest stream, and the bits that a VM sends, in whole
    packets / `processing_bps`. More bandwidth never makes it slower. Raises NetworkError for a pair without figures.
    """
    n = len(locations)
    if n < 2:
        return Transfer(0.0, "none", "", {})
    pair_bits = 2 * gradient_bytes / n * 8
    rates = {
        (i, j): model.carried_bps(network, locations[i], locations[j], n - 1)
        for i, j in permutations(range(n), 2)
    }
    slowest = min(rates, key=lambda pair: rates[pair])
    path_s = pair_bits / rates[slowest]
    vm_s = pair_bits * PACKET_PER_LOAD * (n - 1) / processing_bps
    seconds = max(path_s, vm_s)
    pace_bps = pair_bits / seconds if seconds else math.inf
    spells: dict[float, int] = {}
    for i, j in ((i, j) for i, j in rates if i < j):
        if network.place(locations[i]) == network.place(locations[j]):
            continue
        progress = model.spell_factor * min(rates[i, j], rates[j, i]) / pace_bps
        if model.spell_rate_per_s and progress < 1:
            spells[progress] = spells.get(progress, 0) + 1
    if path_s >= vm_s:
        return Transfer(
            seconds, "path", " to ".join("/".join(locations[k].split("/")[:2]) for k in slowest), spells
        )
    return Transfer(seconds, "vm", "each VM", spells)


def expected_spell_s(found: Transfer, model: PathModel) -> float:
    """Return the expected delay of a round by slow spells that begin in it or before it.

    Spells begin at `spell_rate_per_s` per pair and last an exponentially distributed time m. In one that finds r
    seconds of transfer left, the round progresses at g of its pace, so it is delayed by min(d, r / g) (1 - g), of
    which the mean over d is m (1 - exp(-r / (g m))) (1 - g).
    """
    t, m = found.seconds, model.spell_mean_s
    delay_s = 0.0
    for g, pairs in found.spells.items():
        tail = 1 - math.exp(-t / (g * m))
        begun_in = t * m - g * m * m * tail  # integral over r from 0 to t
        begun_before = m * m * tail
        delay_s += model.spell_rate_per_s * pairs * (1 - g) * (begun_in + begun_before)
    return delay_s
