"""Pairs of peers of an exchange whose pairs differ, by the sizes of the regions, and bounds of what they exchange. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from experiments.averaging.records import Exchange


@dataclass(frozen=True, slots=True)
class Pairs:
    """What peers exchange, numbered region by region."""

    shares: tuple[Fraction, ...]  # of a gradient; below by their index
    pairs: tuple[tuple[int, int, int, int], ...]  # two peers, share each way, streams of the busier of both
    vms: tuple[
        tuple[tuple[int, int], ...], ...
    ]  # each combination once: a share, and to how many peers it is sent


@lru_cache(maxsize=4096)
def pairs_of(exchange: Exchange, sizes: tuple[int, ...]) -> Pairs:
    """Return the pairs of peers in regions of these sizes."""
    sent = exchange.pair_shares([str(number) for number, size in enumerate(sizes) for _ in range(size)])
    shares = sorted(set(sent.values()))
    index = {share: number for number, share in enumerate(shares)}
    partners = Counter(i for i, _ in sent)
    vms: dict[int, Counter[int]] = {}
    for (i, _), share in sent.items():
        vms.setdefault(i, Counter())[index[share]] += 1
    return Pairs(
        shares=tuple(shares),
        pairs=tuple(
            (i, j, index[share], max(partners[i], partners[j])) for (i, j), share in sent.items() if i < j
        ),
        vms=tuple({tuple(sorted(vm.items())) for vm in vms.values()}),
    )


def least_share(regions: int, largest: int, new: int, left: int, *, grows: bool) -> Fraction:
    """Return a share that a pair of peers of two regions exchanges at least after `left` further peers.

    Hierarchical averaging: two of R regions exchange 2 / R gradients, in as many shards as the largest region has peers,
    which at most that many pairs of representatives share. `regions`, `largest`: how many there are so far, and the size
    of the largest. `new`: regions that may be added. `grows`: whether one of the regions so far may get peers.
    """
    most = 0
    for added in range(0 if grows else 1, min(new, left) + 1):
        spare = left - added
        shards = largest + spare if grows else max(largest, 1 + spare)
        most = max(most, (regions + added) * shards)
    return Fraction(2, most)
