"""A dated price book: what a VM-hour, a byte on its way and a stored byte cost, each with its source.

A book is a CSV file with these columns:

| column | meaning |
|---|---|
| provider | gcp, aws, azure, lambda, b2, ... |
| product | vm, egress, store_egress, storage |
| from | vm: region or `*`; egress: the source's continent or `*` |
| to | egress and store_egress: the destination's continent or `*`; else `*` |
| item | vm: `ACCELERATOR/INSTANCE/spot` or `.../on_demand`; egress: class; else `*` |
| unit | vm: h; egress: GB (10^9 bytes) or GiB (2^30 bytes); storage: GB-month or GiB-month |
| tier_start | first unit this price is for, in units a month; 0 for the first tier |
| usd | dollars a unit |
| minimum_s | vm: fewest seconds that are billed; empty where the provider documents none |
| valid_from | ISO date from which the price holds |
| source | where it is written |

What a book does not hold is unknown (None), never 0. Free monthly allowances are not in the books: a
run cannot know what the account has used up.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path

from cloud.prices.classes import CONTINENTS, EGRESS_CLASSES, EgressClass, continent, egress_class

__all__ = ["UNIT_BYTES", "Price", "PriceBook", "PriceBookError", "book_names", "load"]

_FOLDER = Path(__file__).parent
_COLUMNS = (
    "provider",
    "product",
    "from",
    "to",
    "item",
    "unit",
    "tier_start",
    "usd",
    "minimum_s",
    "valid_from",
    "source",
)
_UNITS = {
    "vm": ("h",),
    "egress": ("GB", "GiB"),
    "store_egress": ("GB", "GiB"),
    "storage": ("GB-month", "GiB-month"),
}
UNIT_BYTES: Mapping[str, int] = {"GB": 10**9, "GiB": 2**30, "GB-month": 10**9, "GiB-month": 2**30}
_MARKETS = ("spot", "on_demand")


# PriceBookError   the book does not exist or is wrong (file:line says where)
class PriceBookError(Exception):
    """A price book that cannot be used."""


@dataclass(frozen=True, slots=True)
class Price:
    """One row of a book."""

    provider: str
    product: str
    src: str
    dst: str
    item: str
    unit: str
    tier_start: Decimal
    usd: Decimal
    minimum_s: int | None
    valid_from: date
    source: str
    line: int

    @property
    def instance(self) -> str:
        """The instance type of a VM's price; "" for other products."""
        return self.item.split("/")[1] if self.product == "vm" else ""


_Key = tuple[str, str, str, str, str]  # provider, product, from, to, item


@dataclass(frozen=True)
class PriceBook:
    """Prices by key; each key's tiers ascend from 0 and are of one date."""

    name: str
    sha256: str
    text: str
    tiers: Mapping[tuple[_Key, date], tuple[Price, ...]]

    @classmethod
    def from_text(cls, text: str, name: str) -> PriceBook:
        """Parse a book's CSV text. Raises PriceBookError with `name:line`."""
        tiers: dict[tuple[_Key, date], list[Price]] = {}
        for price in _rows(text, name):
            key = (price.provider, price.product, price.src, price.dst, price.item)
            tiers.setdefault((key, price.valid_from), []).append(price)
        for rows in tiers.values():
            _check_tiers(rows, name)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(name, digest, text, {key: tuple(rows) for key, rows in tiers.items()})

    def vm(self, location: str, accelerator: str, use_spot: bool, on: date | None = None) -> Price | None:
        """The price of a VM-hour at a location `cloud/region[/zone]`; None: unknown.

        `accelerator` is `T4` or `T4:1`. A region's own price goes before the provider's `*`; of several
        instances with the accelerator it is the cheapest. `on`: prices as of that day (default: the newest).
        """
        provider, _, rest = location.partition("/")
        region = rest.partition("/")[0]
        wanted = accelerator if ":" in accelerator else f"{accelerator}:1"
        market = "spot" if use_spot else "on_demand"
        for place in dict.fromkeys((region, "*")):
            found = [
                self._tiers(key, on)
                for key in {k for k, _ in self.tiers}
                if key[:3] == (provider, "vm", place)
                and key[4].split("/")[0] == wanted
                and key[4].split("/")[2] == market
            ]
            rows = [tier[0] for tier in found if tier]
            if rows:
                return min(rows, key=lambda price: (price.usd, price.item))
        return None

    def egress_class(self, src: str, dst: str) -> EgressClass | None:
        """See `cloud.prices.classes.egress_class`."""
        return egress_class(src, dst)

    def egress(
        self, src: str, dst: str, sent_bytes: int, already_bytes: int = 0, on: date | None = None
    ) -> Decimal | None:
        """Dollars for bytes sent from one location to another; None: unknown.

        `already_bytes` is what went the same way this month before: where the provider's tiers begin.
        Between clouds the source's own `between_clouds` price counts, else its price to the internet,
        which is what the public clouds bill.
        """
        kind = egress_class(src, dst)
        if kind is None:
            return None
        for name in (kind, "internet") if kind == "between_clouds" else (kind,):
            tiers = self._most_specific(src.split("/")[0], "egress", src, dst, name, on)
            if tiers:
                return _tiered(tiers, sent_bytes, already_bytes)
        return None

    def store_egress(
        self, store: str, dst: str, read_bytes: int, already_bytes: int = 0, on: date | None = None
    ) -> Decimal | None:
        """Dollars the object store at location `store` bills for bytes read from `dst`; None: unknown."""
        tiers = self._most_specific(store.split("/")[0], "store_egress", store, dst, "*", on)
        return _tiered(tiers, read_bytes, already_bytes) if tiers else None

    def store_providers(self) -> tuple[str, ...]:
        """Providers whose store egress this book prices."""
        return tuple(sorted({key[0] for key, _ in self.tiers if key[1] == "store_egress"}))

    def _most_specific(
        self, provider: str, product: str, src: str, dst: str, item: str, on: date | None
    ) -> tuple[Price, ...]:
        here, there = continent(src) or "*", continent(dst) or "*"
        for place in ((here, there), (here, "*"), ("*", there), ("*", "*")):
            tiers = self._tiers((provider, product, *place, item), on)
            if tiers:
                return tiers
        return ()

    def _tiers(self, key: _Key, on: date | None) -> tuple[Price, ...]:
        dates = [day for k, day in self.tiers if k == key and (on is None or day <= on)]
        return self.tiers[key, max(dates)] if dates else ()


def book_names() -> list[str]:
    """The books that come with orch."""
    return sorted(path.stem for path in _FOLDER.glob("*.csv"))


def load(name: str) -> PriceBook:
    """A book by name (see `book_names`) or by the path of a CSV file. Raises PriceBookError."""
    path = Path(name) if name.endswith(".csv") else _FOLDER / f"{name}.csv"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise PriceBookError(
            f"{name}: there is no such price book; the books are {', '.join(book_names())}, "
            "or give the path of a .csv file"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PriceBookError(f"{path}: cannot read the price book: {error}") from error
    return PriceBook.from_text(text, path.name)


def _tiered(tiers: tuple[Price, ...], amount_bytes: int, already_bytes: int) -> Decimal:
    unit = UNIT_BYTES[tiers[0].unit]
    total = Decimal(0)
    for n, price in enumerate(tiers):
        begins = price.tier_start * unit
        ends = tiers[n + 1].tier_start * unit if n + 1 < len(tiers) else None
        low = max(begins, Decimal(already_bytes))
        high = Decimal(already_bytes + amount_bytes)
        if ends is not None:
            high = min(high, ends)
        if high > low:
            total += (high - low) / unit * price.usd
    return total


def _rows(text: str, name: str) -> list[Price]:
    reader = csv.reader(io.StringIO(text))
    header = next(reader, None)
    if header is None or "usd" not in header:
        raise PriceBookError(f"{name}:1: prices must be in US dollars: there is no column 'usd'")
    if tuple(header) != _COLUMNS:
        raise PriceBookError(f"{name}:1: the columns must be {','.join(_COLUMNS)}")
    rows: list[Price] = []
    for cells in reader:
        where = f"{name}:{reader.line_num}"
        if not cells:
            continue
        if len(cells) != len(_COLUMNS):
            raise PriceBookError(f"{where}: {len(cells)} cells, {len(_COLUMNS)} columns")
        rows.append(
            _price(dict(zip(_COLUMNS, (c.strip() for c in cells), strict=True)), where, reader.line_num)
        )
    return rows


def _price(row: dict[str, str], where: str, line: int) -> Price:
    product, unit, item = row["product"], row["unit"], row["item"]
    if product not in _UNITS:
        raise PriceBookError(f"{where}: product '{product}' is none of {', '.join(_UNITS)}")
    if unit not in _UNITS[product]:
        raise PriceBookError(f"{where}: unit '{unit}' of {product} is none of {', '.join(_UNITS[product])}")
    if product == "vm" and (item.count("/") != 2 or item.split("/")[2] not in _MARKETS):
        raise PriceBookError(
            f"{where}: item '{item}' of vm is not ACCELERATOR/INSTANCE/spot or .../on_demand"
        )
    if product == "egress" and item not in EGRESS_CLASSES:
        raise PriceBookError(f"{where}: egress class '{item}' is none of {', '.join(EGRESS_CLASSES)}")
    for column in ("from", "to"):
        if product in ("egress", "store_egress") and row[column] not in ("*", *CONTINENTS):
            raise PriceBookError(f"{where}: {column} '{row[column]}' is none of *, {', '.join(CONTINENTS)}")
    if not row["source"]:
        raise PriceBookError(f"{where}: a price without a source; write where it comes from")
    try:
        valid_from = date.fromisoformat(row["valid_from"])
    except ValueError as error:
        raise PriceBookError(
            f"{where}: valid_from '{row['valid_from']}' is not a date like 2023-04-01"
        ) from error
    if row["minimum_s"] and not row["minimum_s"].isdigit():
        raise PriceBookError(f"{where}: minimum_s '{row['minimum_s']}' is not a whole number of seconds")
    return Price(
        provider=row["provider"],
        product=product,
        src=row["from"],
        dst=row["to"],
        item=item,
        unit=unit,
        tier_start=_amount(row["tier_start"], "tier_start", where),
        usd=_amount(row["usd"], "usd", where),
        minimum_s=int(row["minimum_s"]) if row["minimum_s"] else None,
        valid_from=valid_from,
        source=row["source"],
        line=line,
    )


def _amount(text: str, column: str, where: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        what = "an amount in US dollars" if column == "usd" else "a number of units"
        raise PriceBookError(f"{where}: {column} '{text}' is not {what}") from error
    if not amount.is_finite() or amount < 0:
        raise PriceBookError(f"{where}: {column} '{text}' is not 0 or more")
    return amount


def _check_tiers(rows: list[Price], name: str) -> None:
    rows.sort(key=lambda price: (price.tier_start, price.line))
    first = rows[0]
    if first.tier_start != 0:
        raise PriceBookError(
            f"{name}:{first.line}: the first tier begins at {first.tier_start}: "
            "nothing is priced from 0 to there"
        )
    for before, price in pairwise(rows):
        if price.tier_start == before.tier_start:
            raise PriceBookError(
                f"{name}:{price.line}: overlaps line {before.line}: the same price of the same date twice"
            )
        if price.unit != before.unit:
            raise PriceBookError(
                f"{name}:{price.line}: unit '{price.unit}' differs from line {before.line}'s '{before.unit}'"
            )
