"""Costs under the paper's assumptions, to reproduce its figures. Pure. Our own costs are in `metrics.cost.ledger`.

Source: Erben et al. 2023 (arXiv 2306.03163), Table 1 and its cost figures, and the authors' logs. docs/numbers.md
("Where we differ from the study") compares these assumptions with ours:

- A "GB" is 1.024e9 bytes (their logs count Mbit; GB = Mbit / 8 / 1024).
- A VM's bytes per hour are those of the network card over the whole log, start-up included, as logged (with doubled
  counters): sum over the VMs of bytes / sum over the VMs of seconds.
- The destinations are not measured. In runs on one continent, each other VM gets an equal part. In runs on several
  continents, each directed pair of VMs in one region and each directed pair of regions is one part. So C-8 has 8/20
  inside regions, 6/20 between continents and 6/20 to or from Oceania. (In fact each VM sends equally to all others,
  which gives 1/7, 3/7 and 3/7.)
- Within a region every byte costs the inter-zone price. Between clouds of one continent it costs the source's price
  between regions (as in the book `study-2023-04`). Only first tiers apply.
- The bytes of loading data are those that the cards received minus those they sent, at the store's price.
- A VM costs its spot price. $ per 1M samples is $/h / 3600 / rate x 10^6. The rate of a single GPU is by phase timers,
  that of a swarm the mean of its epochs' rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction

from cloud.prices.book import PriceBook
from cloud.prices.classes import continent

PAPER_GB = 1_024_000_000  # bytes
LOADING_USD_PER_GB = Decimal("0.01")  # Backblaze B2, from anywhere

# inside: within one region, in any zones. regions: two regions of one cloud and continent. clouds: two clouds on one
# continent. between: two continents, neither of them Oceania. oceania: to or from Oceania.
EGRESS_KINDS = ("inside", "regions", "clouds", "between", "oceania")


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """Dollars per hour of one VM, by kind. None: unknown, which makes every sum unknown."""

    vm: Decimal | None
    inside: Decimal | None = Decimal(0)
    regions: Decimal | None = Decimal(0)
    clouds: Decimal | None = Decimal(0)
    between: Decimal | None = Decimal(0)
    oceania: Decimal | None = Decimal(0)
    loading: Decimal | None = Decimal(0)

    @property
    def usd_per_h(self) -> Decimal | None:
        """Sum over all kinds."""
        return _sum(getattr(self, field.name) for field in fields(self))

    @property
    def egress_usd_per_h(self) -> Decimal | None:
        """Sum over the kinds of egress."""
        return _sum(getattr(self, kind) for kind in EGRESS_KINDS)

    def usd_per_million(self, vms: int, sps: Decimal | float) -> Decimal | None:
        """Return $ per 1M samples of `vms` such VMs that together train `sps` samples/s."""
        per_h = self.usd_per_h
        return None if per_h is None else usd_per_million(vms * per_h, sps)


def usd_per_million(usd_per_h: Decimal, sps: Decimal | float) -> Decimal:
    """Return $ per 1M samples: $/h / 3600 / sps x 10^6. Raises ValueError for a rate that is not positive."""
    rate = _decimal(sps)
    if not rate > 0:
        raise ValueError(f"the rate must be positive, not {sps} samples/s")
    return usd_per_h * 1_000_000 / (3600 * rate)


def gb_per_h(amount_bytes: int, seconds: Decimal | float) -> Decimal:
    """Return the paper's "GB" per hour. Raises ValueError for a time that is not positive."""
    time = _decimal(seconds)
    if not time > 0:
        raise ValueError(f"the time must be positive, not {seconds} s")
    return amount_bytes * 3600 / (PAPER_GB * time)


def vm_usd_per_h(
    spot_usd_per_h: Decimal | None,
    egress_gb_per_h: Decimal | None = Decimal(0),
    shares: Iterable[tuple[str, Fraction, Decimal | None]] = (),
    loading_gb_per_h: Decimal | None = Decimal(0),
    loading_usd_per_gb: Decimal | None = LOADING_USD_PER_GB,
) -> PublishedCost:
    """Return the cost of one VM hour.

    `shares`: (kind of EGRESS_KINDS, share of the egress, $ per "GB"); a kind may be repeated.
    """
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
    """Return the kind (one of EGRESS_KINDS) of traffic between two locations. None for an unknown location."""
    here, there = continent(src), continent(dst)
    if here is None or there is None:
        return None
    if here != there:
        return "oceania" if "AUS" in (here, there) else "between"
    if src.split("/")[0] != dst.split("/")[0]:
        return "clouds"
    return "inside" if _region(src) == _region(dst) else "regions"


def pairs(places: Sequence[str], own: str) -> list[tuple[str, str]]:
    """Return the (source, destination) regions among which the paper divides a VM's bytes in equal parts.

    `places`: the locations of all VMs. `own`: the VM's own location. Regions are `cloud/region`.
    """
    regions = Counter(_region(place) for place in places)
    here = _region(own)
    if len({continent(region) for region in regions}) == 1:
        others = regions - Counter([here])
        return [(here, there) for there in sorted(others.elements())]
    inside = [(a, a) for a, n in sorted(regions.items()) for _ in range(n * (n - 1))]
    return inside + [(a, b) for a in sorted(regions) for b in sorted(regions) if a != b]


def split(shared: Sequence[tuple[str, str]]) -> dict[str | None, Fraction]:
    """Return the shares by kind of the result of `pairs`. The key None is traffic to or from unknown locations."""
    count = Counter(kind_of(a, b) for a, b in shared)
    return {kind: Fraction(count[kind], len(shared)) for kind in (*EGRESS_KINDS, None) if count[kind]}


def usd_per_gb(book: PriceBook, src: str, dst: str) -> Decimal | None:
    """Return the paper's price of a "GB" between two regions. None: unknown.

    It is the first tier of the book's price, whatever its unit; within a region, the price between zones.
    """
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
