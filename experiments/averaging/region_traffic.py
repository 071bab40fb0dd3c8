"""What a round brings from region to region, by the way in which gradients are averaged. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from experiments.schema.models import ExperimentSpec

FLAT, HIERARCHICAL = "flat", "hierarchical"


def region_of(location: str) -> str:
    """`cloud/region` of a place: peers of equal regions average among themselves first."""
    return "/".join(location.split("/")[:2])


def exchanged(regions: Sequence[str], averaging: str) -> dict[tuple[str, str], Fraction]:
    """Whole gradients that the peers of one region send those of another in a round; a region to itself: its peers.

    `regions`: of each peer. Flat, each peer sends each other 2 / n: its share of the one's vector, and the mean of
    its own. Hierarchical, a region's sum and the mean of all cross once for each region but the part's home, which is
    each region in turn: 2 / R from each to each other; inside, every peer but the one whose part it is does the same.
    """
    size = {name: regions.count(name) for name in regions}
    n, r = len(regions), len(size)
    sent: dict[tuple[str, str], Fraction] = {}
    for a, k in size.items():
        for b, m in size.items():
            if averaging == FLAT:
                sent[a, b] = Fraction(2 * k * (m - (a == b)), n)
            else:
                sent[a, b] = Fraction(2, r) if a != b else Fraction(2 * (k - 1))
    return sent


def between_share(regions: Sequence[str]) -> Fraction | None:
    """What hierarchical averaging sends between regions, as a share of what flat does; None: nothing goes there."""
    sums = [
        sum((v for (a, b), v in exchanged(regions, kind).items() if a != b), Fraction(0))
        for kind in (HIERARCHICAL, FLAT)
    ]
    return sums[0] / sums[1] if sums[1] else None


def averaging_note(spec: ExperimentSpec) -> list[str]:
    """What the plan says of hierarchical averaging; nothing for flat."""
    if spec.swarm.averaging == FLAT:
        return []
    regions = [region_of(g.alternatives[0].infra) for g in spec.peers for _ in range(g.count)]
    share = between_share(regions)
    if share is None:
        what = "all peers are in one region, so it sends what flat averaging does"
    elif share == 1:
        what = "no region has two peers, so it sends what flat averaging does"
    else:
        what = f"{float(share):.2f} of flat averaging's bytes go between the {len(set(regions))} regions"
    return [f"averaging hierarchical: {what}"]
