"""Seconds of one averaging round, from what its pairs of peers exchange, their paths and their VMs. Pure.

How much each pair exchanges is a property of the averaging (`experiments.averaging`). Flat: each peer reduces one of n
equal parts: it receives that part from the n - 1 others and sends each of them the average, so each directed pair carries
2 / n of a gradient. A part is averaged when it has arrived from every sender, so all streams keep the pace of the one that
takes longest (`benchmarks/calibrate.py` found this in the logs of B). Hierarchical: as much as its shards need, and a part
is passed on to the next level as soon as it is complete, so all levels take place at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from cloud.networks import Network, Path, PathModel
from experiments.averaging.flat import FLAT
from experiments.averaging.records import Exchange, region_of
from metrics.epochs.scaling import PACKET_PER_LOAD


@dataclass(frozen=True, slots=True)
class Transfer:
    """The exchange of one round without slow spells."""

    seconds: float
    limit: str  # "path", "vm" (its processing) or "none" (one peer)
    where: str  # the slowest pair of locations, or "each VM"
    spells: Mapping[float, int]  # progress in a slow spell relative to the usual one -> pairs of VMs with it


def bytes_of(share: Fraction, gradient_bytes: float) -> float:
    """Return the bytes of a share of a gradient."""
    return share.numerator * gradient_bytes / share.denominator


@dataclass(frozen=True, slots=True)
class Limits:
    """What can limit the seconds of a transfer, each once: streams of pairs, and what VMs send."""

    streams: frozenset[tuple[float, Path, bool, int]]  # payload bits, path, within one place, streams of a VM
    vms: frozenset[
        tuple[tuple[float, int], ...]
    ]  # of each: payload bits for a peer, and number of such peers

    def seconds(self, model: PathModel, processing_bps: float) -> float:
        """Return the seconds of a transfer with these figures of the streams and of a VM's processing."""
        path_s = max(
            bits / (path.stream_bps if inside else model.stream_bps(path, streams))
            for bits, path, inside, streams in self.streams
        )
        sent = max(sum(bits * PACKET_PER_LOAD * peers for bits, peers in vm) for vm in self.vms)
        return max(path_s, sent / processing_bps)


def limits(
    locations: Sequence[str], gradient_bytes: float, network: Network, exchange: Exchange = FLAT
) -> Limits:
    """Return the limits of a transfer among two or more peers. Raises NetworkError for a pair without figures."""
    shares = exchange.pair_shares([region_of(place) for place in locations])
    partners = Counter(i for i, _ in shares)
    sends: dict[int, Counter[float]] = {}
    streams: set[tuple[float, Path, bool, int]] = set()
    known: dict[tuple[str, str], tuple[Path, bool]] = {}
    for (i, j), share in shares.items():
        a, b = locations[i], locations[j]
        if (a, b) not in known:
            known[a, b] = network.path(a, b), network.place(a) == network.place(b)
        bits = bytes_of(share, gradient_bytes) * 8
        streams.add((bits, *known[a, b], max(partners[i], partners[j])))
        sends.setdefault(i, Counter())[bits] += 1
    return Limits(frozenset(streams), frozenset(tuple(sorted(sent.items())) for sent in sends.values()))


def transfer(
    locations: Sequence[str],
    gradient_bytes: float,
    network: Network,
    model: PathModel,
    processing_bps: float,
    exchange: Exchange = FLAT,
) -> Transfer:
    """Return the transfer of one gradient of `gradient_bytes` among peers at `locations` (cloud/region/zone).

    The seconds are the larger of: the payload bits of a pair / its stream, for the pair that takes longest, and the bits
    that a VM sends, in whole packets / `processing_bps`. More bandwidth never makes it slower. A VM has a stream to each
    peer with which it exchanges anything. Raises NetworkError for a pair without figures.
    """
    n = len(locations)
    if n < 2:
        return Transfer(0.0, "none", "", {})
    shares = exchange.pair_shares([region_of(place) for place in locations])
    partners = Counter(i for i, _ in shares)
    rates: dict[tuple[int, int], float] = {}
    path_s: dict[tuple[int, int], float] = {}
    for i, j in permutations(range(n), 2):
        if (i, j) not in shares:
            network.path(locations[i], locations[j])  # they are in one group all the same
            continue
        streams = max(partners[i], partners[j])
        rates[i, j] = model.carried_bps(network, locations[i], locations[j], streams)
        path_s[i, j] = bytes_of(shares[i, j], gradient_bytes) * 8 / rates[i, j]
    slowest = max(path_s, key=lambda pair: path_s[pair])
    vm_s = _most_sent(shares, gradient_bytes) / processing_bps
    seconds = max(path_s[slowest], vm_s)
    spells: dict[float, int] = {}
    for i, j in ((i, j) for i, j in rates if i < j):
        if network.place(locations[i]) == network.place(locations[j]):
            continue
        pace_bps = bytes_of(shares[i, j], gradient_bytes) * 8 / seconds if seconds else math.inf
        progress = model.spell_factor * min(rates[i, j], rates[j, i]) / pace_bps
        if model.spell_rate_per_s and progress < 1:
            spells[progress] = spells.get(progress, 0) + 1
    if path_s[slowest] >= vm_s:
        return Transfer(
            seconds, "path", " to ".join("/".join(locations[k].split("/")[:2]) for k in slowest), spells
        )
    return Transfer(seconds, "vm", "each VM", spells)


def _most_sent(shares: Mapping[tuple[int, int], Fraction], gradient_bytes: float) -> float:
    """Return the bits in whole packets of the VM that sends most."""
    sends: dict[int, Counter[Fraction]] = {}
    for (i, _), share in shares.items():
        sends.setdefault(i, Counter())[share] += 1
    return max(
        sum(
            bytes_of(share, gradient_bytes) * 8 * PACKET_PER_LOAD * peers
            for share, peers in sorted(sent.items())
        )
        for sent in sends.values()
    )


def longest_round_trip_s(locations: Sequence[str], network: Network) -> float:
    """Return the longest round trip between two of the peers. Raises NetworkError for a pair without figures."""
    return max((network.path(a, b).rtt_s for a, b in permutations(locations, 2)), default=0.0)


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
