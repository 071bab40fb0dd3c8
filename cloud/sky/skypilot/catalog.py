"""What SkyPilot could rent in a place, and at what price; reads files only and never contacts anything.

Prices come from SkyPilot's catalogs if they are on this machine, else from a price book (the newest row of the given
books); each offer names its source. An unknown price is None, with the reason.

A VM with an accelerator must have at least the size of the paper's VMs, 4 vCPUs and 28 GiB of memory (Azure's
NC4as_T4_v3; GCP's n1-standard-8 and AWS's g4dn.2xlarge have more), since gradients, averaging and the optimizer use the
host's memory. If a place only has smaller ones, those are offered. `CPU:n` is a general-purpose VM without accelerator
and with at least n vCPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from cloud.prices.book import PriceBook, book_names, load
from cloud.prices.rows import Price
from cloud.provider import Offer
from cloud.sky.skypilot.catalog_files import Catalog, CatalogRow, catalog_folder, read_catalog
from cloud.vendors import RENTABLE, VENDORS

_LEAST_VCPUS = 4
_LEAST_GIB = 28


@dataclass(frozen=True, slots=True)
class Found:
    """What could be rented in one place."""

    offers: tuple[Offer, ...]  # cheapest first, unknown prices last
    why: str = ""  # one sentence: why there are none, or why they are not from the catalog
    price: Price | None = None  # the row that prices the offer, if it is from a price book
    row_helps: bool = False  # the price is unknown, and a row in a price book would give it


class Catalogs:
    """Offers by place, from the catalogs in `folder` or else from the books.

    `own`: a book with rows of the user's, which count before those of the other books, whatever their dates.
    """

    def __init__(
        self, folder: Path, books: Sequence[PriceBook] = (), *, own: PriceBook | None = None
    ) -> None:
        self._folder = folder
        self._own = own
        self._books = tuple(books) if own is None else (own, *books)

    def offers(self, location: str, accelerator: str, use_spot: bool) -> tuple[Offer, ...]:
        """Return the offers of `look`."""
        return self.look(location, accelerator, use_spot).offers

    def look(self, location: str, accelerator: str, use_spot: bool) -> Found:
        """Return what could be rented at `cloud/region[/zone]`; the accelerator is `T4:1`, or `CPU:8`."""
        cloud, _, rest = location.partition("/")
        region, _, zone = rest.partition("/")
        vendor = RENTABLE.get(cloud)
        if vendor is None:
            return Found((), f"SkyPilot is not used for '{cloud}', only for {', '.join(RENTABLE)}")
        if use_spot and not vendor.rents_spot:
            return Found((), f"{vendor.title} rents no spot VMs; use_spot must be false there")
        name, _, count = accelerator.partition(":")
        read = read_catalog(self._folder, cloud)
        if isinstance(read, str):
            return self._from_books(location, f"{name}:{count or 1}", use_spot, read)
        found = sorted(
            _priced(read, region, zone, name, int(count or 1), use_spot),
            key=lambda o: (o.usd is None, o.usd or 0),
        )
        if not found:
            return Found((), f"{read.source}: has no {accelerator} at {location}")
        best: dict[str, _Priced] = {}
        for priced in found:
            best.setdefault(priced.instance, priced)
        return Found(
            tuple(
                Offer(
                    location=location,
                    instance=p.instance,
                    accelerator=accelerator,
                    use_spot=use_spot,
                    usd_per_h=p.usd,
                    price_source=f"{read.source}{p.remark}",
                )
                for p in best.values()
            )
        )

    def _from_books(self, location: str, accelerator: str, use_spot: bool, why: str) -> Found:
        prices = [(book, book.vm(location, accelerator, use_spot)) for book in self._books]
        known: list[tuple[PriceBook, Price]] = [(book, price) for book, price in prices if price is not None]
        if known:
            newest = max(
                (price for _, price in known), key=lambda price: price.valid_from
            )  # the first of several
            price = next((price for book, price in known if self._is_users(book, price)), newest)
            source = f"price book {price.origin}, valid from {price.valid_from} ({price.source})"
            offer = self._offer(location, price.instance, accelerator, use_spot, price.usd, source)
            return Found((offer,), f"{why}: prices are those of the price books", price)
        names = ", ".join(book.name for book in self._books) or "no book"
        market = "spot" if use_spot else "on-demand"
        reason = f"unknown: {why}, and {names} has no {market} price of {accelerator} there"
        other = [book.vm(location, accelerator, not use_spot) for book in self._books]
        instance = next((price.instance for price in other if price is not None), "")
        if not instance:
            return Found((), reason, row_helps=True)
        offer = self._offer(location, instance, accelerator, use_spot, None, reason)
        return Found((offer,), row_helps=True)

    def _is_users(self, book: PriceBook, price: Price) -> bool:
        """Whether the price is the user's own, and not that of another book below it."""
        others = [each for each in self._books if each is not self._own]
        rows = [row for each in others for row in each.tiers.get((price.key, price.valid_from), ())]
        return book is self._own and all((row.usd, row.source) != (price.usd, price.source) for row in rows)

    @staticmethod
    def _offer(
        location: str, instance: str, accelerator: str, use_spot: bool, usd: Decimal | None, source: str
    ) -> Offer:
        instance = VENDORS[location.partition("/")[0]].instance_names.get(instance, instance)
        return Offer(location, instance, accelerator, use_spot, usd, source)


def here(book: PriceBook, environ: Mapping[str, str]) -> Catalogs:
    """Return this machine's catalogs, followed by an experiment's price book and the other books that come with orch."""
    shipped = [load(name) for name in book_names()]
    others = [each for each in shipped if each.sha256 != book.sha256]
    if len(others) == len(shipped):
        return Catalogs(catalog_folder(environ), others, own=book)
    return Catalogs(catalog_folder(environ), (book, *others))


@dataclass(frozen=True, slots=True)
class _Priced:
    instance: str
    usd: Decimal | None
    remark: str  # appended to the price's source


def _priced(
    catalog: Catalog, region: str, zone: str, accelerator: str, count: int, use_spot: bool
) -> Iterator[_Priced]:
    vendor, here = VENDORS[catalog.cloud], catalog.regions.get(region, ())
    if zone and catalog.zones_named:
        here = tuple(row for row in here if row.zone == zone)
    vms = [row for row in here if row.instance]
    if accelerator == "CPU":
        vms = [row for row in vms if not row.accelerator and re.match(vendor.cpu_instances, row.instance)]
        vms = [row for row in vms if (row.vcpus or 0) >= count]
    elif vendor.accelerator_host is not None:
        host = re.compile(vendor.accelerator_host(accelerator, count))
        yield from _attached(vms, here, host, accelerator, count, use_spot)
        return
    else:
        vms = _large_enough(row for row in vms if (row.accelerator, row.count) == (accelerator, count))
    if zone and not catalog.zones_named and use_spot:
        yield from _dearest(vms, zone)
        return
    for row in vms:
        yield _Priced(row.instance, _of(row, use_spot), "" if _of(row, use_spot) else _unpriced(use_spot))


def _attached(
    vms: Iterable[CatalogRow],
    here: Iterable[CatalogRow],
    host: re.Pattern[str],
    accelerator: str,
    count: int,
    use_spot: bool,
) -> Iterator[_Priced]:
    """VMs whose price does not include the accelerator that is attached to them; both are priced by zone."""
    extra = {
        row.zone: row
        for row in here
        if not row.instance and (row.accelerator, row.count) == (accelerator, count)
    }
    for row in _large_enough(row for row in vms if host.fullmatch(row.instance) and row.zone in extra):
        parts = (_of(row, use_spot), _of(extra[row.zone], use_spot))
        if parts[0] is None or parts[1] is None:
            yield _Priced(row.instance, None, _unpriced(use_spot))
        else:
            remark = f": {row.instance} {parts[0]} + {accelerator}:{count} {parts[1]}"
            yield _Priced(row.instance, parts[0] + parts[1], remark)


def _dearest(vms: Iterable[CatalogRow], zone: str) -> Iterator[_Priced]:
    """AWS without the account's zone names: the price is at most that of the region's most expensive zone."""
    prices: dict[str, list[Decimal | None]] = {}
    for row in vms:
        prices.setdefault(row.instance, []).append(row.spot_usd_per_h)
    for instance, found in prices.items():
        known = [usd for usd in found if usd is not None]
        remark = (
            f": the region's most expensive zone, since no file here says which of them {zone} is (this depends on the account)"
            if known
            else _unpriced(True)
        )
        yield _Priced(instance, max(known, default=None), remark)


def _large_enough(rows: Iterable[CatalogRow]) -> list[CatalogRow]:
    found = list(rows)
    large = [r for r in found if (r.vcpus or 0) >= _LEAST_VCPUS and (r.memory_gib or 0) >= _LEAST_GIB]
    return large or found


def _of(row: CatalogRow, use_spot: bool) -> Decimal | None:
    return row.spot_usd_per_h if use_spot else row.usd_per_h


def _unpriced(use_spot: bool) -> str:
    return f": has the VM but no {'spot' if use_spot else 'on-demand'} price for it"
