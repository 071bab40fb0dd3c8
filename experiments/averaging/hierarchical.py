"""`averaging: hierarchical`: averaging first within each region, then once between the regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from experiments.averaging.flat import flat_sent, flat_transfer_s
from experiments.averaging.records import Exchange


def _sent(regions: Sequence[str]) -> dict[tuple[str, str], Fraction]:
    """Implement `Exchange.sent`.

    Every part has a home region, in equal shares. Each other region sends its sum of the part there and receives the mean
    back, which makes 2 / R gradients from each region to each other. Within a region, every peer except the owner of the
    part does the same.
    """
    size = Counter(regions)
    return {
        (a, b): Fraction(2, len(size)) if a != b else Fraction(2 * (k - 1))
        for a, k in size.items()
        for b in size
    }


def _pair_shares(regions: Sequence[str]) -> dict[tuple[int, int], Fraction]:
    """Implement `Exchange.pair_shares`.

    The gradient is cut into as many shards as the largest region has peers. Of each shard every region has one
    representative, its peers in turn, to which the others of the region send the shard and which sends them the average.
    The representatives of a shard exchange 2 / R of it with each other.
    """
    peers: dict[str, list[int]] = {}
    for peer, region in enumerate(regions):
        peers.setdefault(region, []).append(peer)
    shards = max(map(len, peers.values()), default=0)
    units = Counter[tuple[int, int]]()  # of 1 / (shards x regions) of a gradient
    for shard in range(shards):
        representatives = [members[shard % len(members)] for members in peers.values()]
        for members, representative in zip(peers.values(), representatives, strict=True):
            for member in members:
                if member != representative:
                    units[member, representative] += len(peers)
                    units[representative, member] += len(peers)
        for pair in permutations(representatives, 2):
            units[pair] += 2
    return {pair: Fraction(count, shards * len(peers)) for pair, count in units.items()}


def between_share(regions: Sequence[str]) -> Fraction | None:
    """Return the bytes between regions as a share of those of flat averaging. None if there are none."""
    sums = [
        sum((v for (a, b), v in sent(regions).items() if a != b), Fraction(0)) for sent in (_sent, flat_sent)
    ]
    return sums[0] / sums[1] if sums[1] else None


def _plan_notes(regions: Sequence[str]) -> list[str]:
    share = between_share(regions)
    if share is None:
        what = "all peers are in one region, so it sends the same bytes as flat averaging"
    elif share == 1:
        what = "no region has two peers, so it sends the same bytes as flat averaging"
    else:
        what = f"sends {float(share):.2f} of flat averaging's bytes between the {len(set(regions))} regions"
    return [f"averaging hierarchical: {what}"]


HIERARCHICAL = Exchange(
    key="averaging",
    name="hierarchical",
    meaning="gradients are averaged first within each region (cloud/region), then once between the regions",
    sent=_sent,
    pair_shares=_pair_shares,
    transfer_s=flat_transfer_s,  # an upper bound; `pair_shares` tells what regions save
    plan_notes=_plan_notes,
    whole_group=False,
    averager="HierarchicalAverager",
)
