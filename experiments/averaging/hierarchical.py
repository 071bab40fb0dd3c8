"""`averaging: hierarchical`: first within each region, then once between the regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from experiments.averaging.flat import flat_sent, flat_transfer_s
from experiments.averaging.records import Exchange


def _sent(regions: Sequence[str]) -> dict[tuple[str, str], Fraction]:
    """See `Exchange.sent`.

    A region's sum and the mean of all cross once for each region but the part's home, which is each region in turn:
    2 / R from each to each other. Inside a region, every peer but the one whose part it is does the same.
    """
    size = Counter(regions)
    return {
        (a, b): Fraction(2, len(size)) if a != b else Fraction(2 * (k - 1))
        for a, k in size.items()
        for b in size
    }


def between_share(regions: Sequence[str]) -> Fraction | None:
    """Bytes between regions, as a share of those of flat averaging; None: nothing is sent there."""
    sums = [
        sum((v for (a, b), v in sent(regions).items() if a != b), Fraction(0)) for sent in (_sent, flat_sent)
    ]
    return sums[0] / sums[1] if sums[1] else None


def _plan_notes(regions: Sequence[str]) -> list[str]:
    share = between_share(regions)
    if share is None:
        what = "all peers are in one region, so it sends what flat averaging does"
    elif share == 1:
        what = "no region has two peers, so it sends what flat averaging does"
    else:
        what = f"{float(share):.2f} of flat averaging's bytes go between the {len(set(regions))} regions"
    return [f"averaging hierarchical: {what}"]


HIERARCHICAL = Exchange(
    key="averaging",
    name="hierarchical",
    meaning="first within each region (cloud/region), then once between the regions",
    sent=_sent,
    transfer_s=flat_transfer_s,  # an upper bound: what it saves between regions is not predicted
    plan_notes=_plan_notes,
    whole_group=False,
    averager="HierarchicalAverager",
)
