"""Dollars on the study's own assumptions, so that its figures come out. Pure; ours are in `metrics.cost.ledger`.

Source: Erben et al. 2023 (arXiv 2306.03163), Table 1 and its cost figures, and the authors' logs. The assumptions,
which docs/numbers.md ("Where we differ from the study") holds against ours:

- a "GB" is 1.024e9 bytes (their logs count Mbit; GB = Mbit / 8 / 1024);
- a VM's bytes an hour are those of the network card over the whole log, start-up included, as logged (doubled
  counters too): sum over the VMs of bytes / sum over the VMs of seconds;
- what of them went where is not measured. Runs on one continent: equal parts to every other VM. Runs on several:
  each directed pair of VMs of one region and each directed pair of regions counts as one part, so that C-8 is 8/20
  inside, 6/20 between continents and 6/20 to or from Oceania (each VM sends to every other alike, so that really
  1/7, 3/7 and 3/7 go there);
- inside a region every byte costs the inter-zone price, between clouds of one continent the source's price
  between regions (the book `study-2023-04` has it so); only first tiers;
- loading data is what the cards received beyond what they sent, at the store's price;
- a VM costs its spot price; $ per 1M samples is $/h / 3600 / rate x 10^6. The rate of one GPU alone is by phase
  timers, that of a swarm the mean of its epochs' rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction

from cloud.prices.book import PriceBook
from cloud.prices.classes import continent

STUDY_GB = 1_024_000_000  # bytes
LOADING_USD_PER_GB = Decimal("0.01")  # Backblaze B2, from anywhere

# inside: one region, whatever the zones; regions: two regions of one cloud and continent; clouds: two clouds on
# one continent; between: two continents, neither of them Oceania.
EGRESS_KINDS = ("inside", "regions", "clouds", "between", "oceania")


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """Dollars of one VM for an hour, by kind; None: unknown, and so is every sum that it is in."""

    vm: Decimal | None
    inside: Decimal | None = Decimal(0)
    regions: Decimal | None = Decimal(0)
    clouds: Decimal | None = Decimal(0)
    between: Decimal | None = Decimal(0)
    oceania: Decimal | None = Decimal(0)
    loading: Decimal | None = Decimal(0)

    @property
    def usd_per_h(self) -> Decimal | None:
        """All of it."""
        return _sum(getattr(self, field.name) for field in fields(self))

    @property
    def egress_usd_per_h(self) -> Decimal | None:
        """What the bytes sent cost."""
        return _sum(getattr(self, kind) for kind in EGRESS_KINDS)

    @property
    def leaving_usd_per_h(self) -> Decimal | None:
        """What the bytes that leave the region cost."""
        return _sum(getattr(self, kind) for kind in EGRESS_KINDS if kind != "inside")

    def usd_per_million(self, vms: int, sps: Decimal | float) -> Decimal | None:
        """$ per 1M samples of `vms` such VMs that train `sps` samples/s together."""
        per_h = self.usd_per_h
        return None if per_h is None else usd_per_million(vms * per_h, sps)


def usd_per_million(usd_per_h: Decimal, sps: Decimal | float) -> Decimal:
    """$ per 1M samples: $/h / 3600 / sps x 10^6. Raises ValueError for a rate that is not above 0."""
    rate = _decimal(sps)
    if not rate > 0:
        raise ValueError(f"a rate of {sps} samples/s trains nothing")
    return usd_per_h * 1_000_000 / (3600 * rate)


def gb_per_h(amount_bytes: int, seconds: Decimal | float) -> Decimal:
    """The study's "GB" an hour. Raises ValueError for a time that is not above 0."""
    time = _decimal(seconds)
    if not time > 0:
        raise ValueError(f"no rate over {seconds} s")
    return amount_bytes * 3600 / (STUDY_GB * time)


def vm_usd_per_h(
    spot_usd_per_h: Decimal | None,
    egress_gb_per_h: Decimal | None = Decimal(0),
    shares: Iterable[tuple[str, Fraction, Decimal | None]] = (),
    loading_gb_per_h: Decimal | None = Decimal(0),
    loading_usd_per_gb: Decimal | None = LOADING_USD_PER_GB,
) -> PublishedCost:
    """One VM's hour. `shares`: (kind of EGRESS_KINDS, share of the egress, $ a "GB"), a kind any number of times."""
    egress: dict[str, Decimal | None] = {}
    for kind, share, price in shares:
        part = None
        if egress_gb_per_h is not None and price is not None:
            part = egress_gb_per_h * price * share.numerator / share.denominator
        egress[kind] = _sum((egress.get(kind, Decimal(0)), part))
    read = None
    if loading_gb_per_h is not None and loading_usd_per_gb is not None:
        read = loading_gb_per_h * loading_usd_per_gb
    return PublishedCost(vm=spot_usd_per_h, loading=read, **egress)


def kind_of(src: str, dst: str) -> str | None:
    """Which of EGRESS_KINDS a byte between two locations is; None when a place is not on the map."""
    here, there = continent(src), continent(dst)
    if here is None or there is None:
        return None
    if here != there:
        return "oceania" if "AUS" in (here, there) else "between"
    if src.split("/")[0] != dst.split("/")[0]:
        return "clouds"
    return "inside" if _region(src) == _region(dst) else "regions"


def pairs(places: Sequence[str], own: str) -> list[tuple[str, str]]:
    """The (source, destination) regions among which the study shares out a VM's bytes in equal parts.

    `places`: the locations of all VMs; `own`: the VM's own. Regions are `cloud/region`.
    """
    regions = Counter(_region(place) for place in places)
    here = _region(own)
    if len({continent(region) for region in regions}) == 1:
        others = regions - Counter([here])
        return [(here, there) for there in sorted(others.elements())]
    inside = [(a, a) for a, n in sorted(regions.items()) for _ in range(n * (n - 1))]
    return inside + [(a, b) for a in sorted(regions) for b in sorted(regions) if a != b]


def split(shared: Sequence[tuple[str, str]]) -> dict[str | None, Fraction]:
    """The shares by kind of what `pairs` gives; under None what goes to or from a place nobody knows."""
    count = Counter(kind_of(a, b) for a, b in shared)
    return {kind: Fraction(count[kind], len(shared)) for kind in (*EGRESS_KINDS, None) if count[kind]}


def usd_per_gb(book: PriceBook, src: str, dst: str) -> Decimal | None:
    """What the study lets a "GB" between two regions cost: the first tier of the book's price, whatever its
    unit, and inside a region the price between zones; None: unknown."""
    ladder = book.ladder(_region(src), _region(dst))
    return ladder.tiers[0].usd if ladder else None


def _region(location: str) -> str:
    return "/".join(location.split("/")[:2])


def _sum(parts: Iterable[Decimal | None]) -> Decimal | None:
    total = Decimal(0)
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _decimal(value: Decimal | float) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
