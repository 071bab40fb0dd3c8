"""Averaging in two levels, as a plan: who averages which part within a region, and who between the regions.

The vector is cut into parts. Of each part every region has one representative, which averages the part over its
region; one of the representatives, the part's home, averages what the regions give it. So each part crosses between
regions once in each direction for every region but the home: 2 (R - 1) vectors in all, where Hivemind's flat
all-reduce sends 2 / n of a vector from each peer to each other. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Traffic = dict[tuple[int, int], float]  # values sent, by (sender, receiver)


@dataclass(frozen=True, slots=True)
class Part:
    """Values `start` to `stop` of one flattened tensor, the shard they belong to, and the region that is their home."""

    tensor: int
    number: int  # within the tensor
    start: int
    stop: int
    shard: int
    home: int

    @property
    def values(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True)
class Hierarchy:
    """The regions of a group. Peers are numbers: their places in the group's order, the same to all of them."""

    regions: tuple[tuple[int, ...], ...]  # the peers of each

    @classmethod
    def of(cls, regions: Sequence[str]) -> Hierarchy:
        """From the region of each peer of the group. Raises ValueError for an empty group."""
        if not regions:
            raise ValueError("a group has at least one peer")
        names = sorted(set(regions))
        return cls(tuple(tuple(i for i, r in enumerate(regions) if r == name) for name in names))

    @property
    def shards(self) -> int:
        """As many as the largest region has peers, so that all of its peers represent it."""
        return max(len(members) for members in self.regions)

    def region_of(self, peer: int) -> int:
        """The number of the peer's region."""
        return next(r for r, members in enumerate(self.regions) if peer in members)

    def representative(self, region: int, shard: int) -> int:
        """The peer that averages the shard's parts for the region."""
        members = self.regions[region]
        return members[shard % len(members)]

    def home(self, part: Part) -> int:
        """The peer that averages the part over all regions."""
        return self.representative(part.home, part.shard)


def cut(sizes: Sequence[int], part_values: Sequence[int], hierarchy: Hierarchy) -> tuple[Part, ...]:
    """Tensors of so many values, cut into parts of at most so many each, in order.

    Each next part goes to the shard and home that have the least so far: their sums differ by one part at most.
    """
    load = [[0] * hierarchy.shards for _ in hierarchy.regions]
    parts: list[Part] = []
    for tensor, (size, most) in enumerate(zip(sizes, part_values, strict=True)):
        for number, start in enumerate(range(0, size, max(1, most))):
            stop = min(start + max(1, most), size)
            home, shard = min(
                ((h, s) for s in range(hierarchy.shards) for h in range(len(load))),
                key=lambda cell: load[cell[0]][cell[1]],
            )
            load[home][shard] += stop - start
            parts.append(Part(tensor, number, start, stop, shard, home))
    return tuple(parts)


def traffic(hierarchy: Hierarchy, parts: Sequence[Part]) -> Traffic:
    """Values each peer sends each other in a round."""
    sent: Traffic = {}

    def both_ways(a: int, b: int, values: int) -> None:
        if a != b:
            sent[a, b] = sent.get((a, b), 0) + values
            sent[b, a] = sent.get((b, a), 0) + values

    for part in parts:
        for region, members in enumerate(hierarchy.regions):
            representative = hierarchy.representative(region, part.shard)
            for member in members:
                both_ways(member, representative, part.values)
            both_ways(representative, hierarchy.home(part), part.values)
    return sent


def flat_traffic(peers: int, values: int) -> Traffic:
    """The same of Hivemind's all-reduce: 2 / n of the vector from each peer to each other."""
    pairs = [(a, b) for a in range(peers) for b in range(peers) if a != b]
    return dict.fromkeys(pairs, 2 * values / peers)
