"""Plan of two-level averaging: which peer averages which part within a region, and which one between the regions.

The vector is cut into parts. Each region has a representative for each part, which averages the part over its region.
One of the representatives, the part's home, averages the means of the regions. So each part crosses regions once in
each direction for every region except the home: 2 (R - 1) vectors in total. Hivemind's flat all-reduce sends 2 / n of a
vector from each peer to each other. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Traffic = dict[tuple[int, int], float]  # values sent, by (sender, receiver)


@dataclass(frozen=True, slots=True)
class Part:
    """Values `start` to `stop` of one flattened tensor, their shard, and their home region."""

    tensor: int
    number: int  # within the tensor
    start: int
    stop: int
    shard: int
    home: int

    @property
    def values(self) -> int:
        """Number of values."""
        return self.stop - self.start


@dataclass(frozen=True)
class Hierarchy:
    """The regions of a group. Peers are numbered by their position in the group, which is the same on all of them."""

    regions: tuple[tuple[int, ...], ...]  # peers of each region

    @classmethod
    def of(cls, regions: Sequence[str]) -> Hierarchy:
        """Create it from the region of each peer of the group. Raises ValueError for an empty group."""
        if not regions:
            raise ValueError("a group has at least one peer")
        names = sorted(set(regions))
        return cls(tuple(tuple(i for i, r in enumerate(regions) if r == name) for name in names))

    @property
    def shards(self) -> int:
        """Number of shards: the size of the largest region, so that all of its peers are representatives."""
        return max(len(members) for members in self.regions)

    def region_of(self, peer: int) -> int:
        """Return the number of the peer's region."""
        return next(r for r, members in enumerate(self.regions) if peer in members)

    def representative(self, region: int, shard: int) -> int:
        """Return the peer that averages the shard's parts for the region."""
        members = self.regions[region]
        return members[shard % len(members)]

    def home(self, part: Part) -> int:
        """Return the peer that averages the part over all regions."""
        return self.representative(part.home, part.shard)


def cut(sizes: Sequence[int], part_values: Sequence[int], hierarchy: Hierarchy) -> tuple[Part, ...]:
    """Cut tensors of the given `sizes` into parts of at most `part_values` values each (per tensor), in order.

    Each part is assigned to the shard and home with the smallest load, so that their loads differ by one part at most.
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
    """Compute the number of values that each peer sends to each other one in a round."""
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
    """Compute the same for Hivemind's all-reduce: 2 / n of the vector from each peer to each other."""
    pairs = [(a, b) for a in range(peers) for b in range(peers) if a != b]
    return dict.fromkeys(pairs, 2 * values / peers)
