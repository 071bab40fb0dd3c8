"""Rows that a price book lacks, as lines that can be pasted into a CSV file once the price is filled in."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from cloud.prices.book import PRICED_AS, PriceBook
from cloud.prices.classes import continent, egress_class, store_egress_class
from cloud.prices.rows import COLUMNS, UNNAMED


@dataclass(frozen=True, slots=True)
class MissingPrice:
    """The first columns of a row that a book lacks."""

    provider: str
    product: str
    src: str
    dst: str
    item: str
    unit: str

    @classmethod
    def of(cls, columns: Mapping[str, str]) -> MissingPrice:
        """Return the row of which `as_dict` returned these columns."""
        names = ("provider", "product", "from", "to", "item", "unit")
        return cls(*(columns[name] for name in names))

    def as_dict(self) -> dict[str, str]:
        """Return the columns by their names in a book."""
        return {
            "provider": self.provider,
            "product": self.product,
            "from": self.src,
            "to": self.dst,
            "item": self.item,
            "unit": self.unit,
        }


class _Vm(Protocol):
    """A place where a VM is wanted."""

    @property
    def location(self) -> str: ...
    @property
    def accelerator(self) -> str: ...
    @property
    def use_spot(self) -> bool: ...
    @property
    def instance(self) -> str: ...


def missing_vms(book: PriceBook, places: Iterable[_Vm]) -> list[MissingPrice]:
    """List the rows for an hour of the VMs at these places.

    Where the instance type is unknown, it is taken from another row of the book.
    """
    return list(dict.fromkeys(_vm(book, place) for place in places))


def _vm(book: PriceBook, place: _Vm) -> MissingPrice:
    provider, region = place.location.split("/")[:2]
    rows = (price for price in book.prices() if (price.provider, price.product) == (provider, "vm"))
    same = (price.instance for price in rows if price.item.split("/")[0] == place.accelerator)
    instance = next(same, UNNAMED) if place.instance in ("", "unknown") else place.instance
    market = "spot" if place.use_spot else "on_demand"
    return MissingPrice(provider, "vm", region, "*", f"{place.accelerator}/{instance}/{market}", "h")


def missing_egress(book: PriceBook, src: str, dst: str, *, public: bool) -> MissingPrice:
    """Return the row for a byte that a VM at `src` sends to `dst`; see `PriceBook.ladder`."""
    kind = egress_class(src, dst, public=public) or "internet"
    return _traffic(book, "egress", src, dst, PRICED_AS.get(kind, kind))


def missing_store_egress(book: PriceBook, store: str, dst: str) -> MissingPrice:
    """Return the row for a byte that the object store at location `store` sends to `dst`."""
    kind = store_egress_class(store, dst) or "*"
    return _traffic(book, "store_egress", store, dst, PRICED_AS.get(kind, kind))


def missing_storage(store: str) -> MissingPrice:
    """Return the row for a byte that is stored for a month at location `store`."""
    provider, region = store.split("/")[:2]
    return MissingPrice(provider, "storage", region, "*", "*", "GB-month")


def as_csv(missing: Iterable[MissingPrice], valid_from: date | None) -> str:
    """Return the header and the rows of a book, each price and its source left blank. No newline at the end."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    day = valid_from.isoformat() if valid_from else ""
    for price in dict.fromkeys(missing):
        row = {**price.as_dict(), "tier_start": "0", "valid_from": day}
        lines.writerow(row.get(column, "") for column in COLUMNS)
    return text.getvalue().rstrip("\n")


def _traffic(book: PriceBook, product: str, src: str, dst: str, item: str) -> MissingPrice:
    """From the source's region; prices between continents depend on the destination's, others are for any."""
    provider, region = src.split("/")[:2]
    to = (continent(dst) or "*") if item in ("inter_continent", "oceania") else "*"
    units = (p.unit for p in book.prices() if p.provider == provider and p.product.endswith("egress"))
    return MissingPrice(provider, product, region, to, item, next(units, "GB"))
