"""Parse a price book's CSV text into rows; each problem is one sentence with file, line and column.

The format is described in docs/prices.md. Books written before the column `increment_s` existed are accepted too, since
runs keep the text of their book; their VMs are billed per second.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise
from typing import TypeVar

from cloud.prices.classes import CONTINENTS, EGRESS_CLASSES, STORE_CLASSES, continent

COLUMNS = (
    "provider", "product", "from", "to", "item", "unit", "tier_start", "usd", "minimum_s", "increment_s",
    "valid_from", "source",
)  # fmt: skip
_SINCE_FIRST = tuple(column for column in COLUMNS if column != "increment_s")
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "vm": ("h",),
    "egress": ("GB", "GiB"),
    "store_egress": ("GB", "GiB"),
    "storage": ("GB-month", "GiB-month"),
}
_T = TypeVar("_T")
_MARKETS = ("spot", "on_demand")
UNNAMED = "INSTANCE_TYPE"
"""Stands for an instance type that is unknown, in a row that is proposed and not yet filled in."""
# Bounded, so that sums stay exact.
_AMOUNT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,20})?([eE][+-]?[0-9])?", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_SHOWN = 5  # problems reported at once


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
    increment_s: int = 1
    origin: str = ""  # the book and line in which it was written: mine.csv:2; "": in none

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What the price is for: provider, product, from, to, item."""
        return (self.provider, self.product, self.src, self.dst, self.item)

    @property
    def instance(self) -> str:
        """The instance type of a VM's price; "" for other products."""
        return self.item.split("/")[1] if self.product == "vm" else ""

    def billed_seconds(self, seconds: Decimal | float) -> Decimal:
        """Seconds that the provider bills for `seconds` of a VM: whole increments, at least the minimum."""
        used = Decimal(repr(seconds)) if isinstance(seconds, float) else Decimal(seconds)
        steps = (max(used, Decimal(0)) / self.increment_s).to_integral_value(ROUND_CEILING)
        return max(steps * self.increment_s, Decimal(self.minimum_s or 0))


def to_text(rows: Iterable[Price]) -> str:
    """Write rows as a book's CSV text, which `parse` reads again."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for price in rows:
        steps = price.increment_s if price.product == "vm" else ""
        minimum = "" if price.minimum_s is None else price.minimum_s
        amounts = (f"{price.tier_start:f}", f"{price.usd:f}")
        lines.writerow((*price.key, price.unit, *amounts, minimum, steps, price.valid_from, price.source))
    return text.getvalue()


def parse(text: str, name: str) -> list[Price]:
    """Parse all rows of a book's CSV text, in order. Raises PriceBookError listing each problem with `name:line`."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Price] = []
    problems: list[str] = []
    try:
        header = next(lines, None)
        columns = _header(header, name)
        for cells in lines:
            where = f"{name}:{lines.line_num}"
            if not cells or cells == header:  # rows pasted with their header
                continue
            if len(cells) != len(columns):
                problems.append(
                    f"{where}: {len(cells)} cells, {len(columns)} columns: a comma or the line's end is missing"
                )
                continue
            row = dict(zip(columns, (cell.strip() for cell in cells), strict=True))
            parsed = _price(row, where, lines.line_num)
            if isinstance(parsed, Price):
                rows.append(parsed)
            else:
                problems += parsed
    except csv.Error as error:
        problems.append(f"{name}:{lines.line_num}: not a line of CSV: {error}")
    problems += _ladder_problems(rows, name)
    if problems:
        more = f"; {len(problems) - _SHOWN} more problems" if len(problems) > _SHOWN else ""
        raise PriceBookError("; ".join(problems[:_SHOWN]) + more)
    return rows


def _header(header: list[str] | None, name: str) -> tuple[str, ...]:
    if header is None:
        raise PriceBookError(f"{name}:1: the price book is empty; its columns are {','.join(COLUMNS)}")
    if "usd" not in header:
        raise PriceBookError(
            f"{name}:1: prices must be in US dollars: there is no column 'usd'; "
            f"the columns are {','.join(COLUMNS)}"
        )
    if "currency" in header:
        raise PriceBookError(
            f"{name}:1: column 'currency': prices must be in US dollars, converted, in column 'usd'; leave 'currency' out"
        )
    if tuple(header) not in (COLUMNS, _SINCE_FIRST):
        missing = [column for column in _SINCE_FIRST if column not in header]
        unknown = [column for column in header if column not in COLUMNS]
        wrong = [
            f"{what} {', '.join(map(repr, names))}"
            for what, names in (("no", missing), ("unknown", unknown))
            if names
        ]
        raise PriceBookError(
            f"{name}:1: {'; '.join(wrong) or 'wrong order'}: the columns must be {','.join(COLUMNS)}"
        )
    return tuple(header)


def _price(row: Mapping[str, str], where: str, line: int) -> Price | list[str]:
    """Parse a row; a row with problems gives all of them instead."""
    problems = list(_name_problems(row))

    def parsed(parse: Callable[[str, str], _T], column: str) -> _T | None:
        try:
            return parse(row.get(column, ""), column)
        except ValueError as error:
            problems.append(str(error))
            return None

    tier_start, usd = parsed(_amount, "tier_start"), parsed(_amount, "usd")
    minimum_s, increment_s = parsed(_seconds, "minimum_s"), parsed(_seconds, "increment_s")
    valid_from = parsed(_day, "valid_from")
    if increment_s == 0:
        problems.append("increment_s '0' is not 1 or more")
    if not row["source"]:
        problems.append("the price has no source; write where it comes from")
    if problems or tier_start is None or usd is None or valid_from is None:
        return [f"{where}: {problem}" for problem in problems]
    return Price(
        provider=row["provider"],
        product=row["product"],
        src=row["from"],
        dst=row["to"],
        item=row["item"],
        unit=row["unit"],
        tier_start=tier_start,
        usd=usd,
        minimum_s=minimum_s,
        valid_from=valid_from,
        source=row["source"],
        line=line,
        increment_s=increment_s or 1,
        origin=where,
    )


def _name_problems(row: Mapping[str, str]) -> Iterator[str]:
    """Check the columns that say what the price is for."""
    product, unit, item = row["product"], row["unit"], row["item"]
    if product not in PRODUCTS:
        yield f"product '{product}' is not one of {', '.join(PRODUCTS)}"
        return
    if unit not in PRODUCTS[product]:
        yield f"unit '{unit}' of {product} is not {' or '.join(PRODUCTS[product])}"
    if product == "vm" and (item.count("/") != 2 or item.split("/")[2] not in _MARKETS):
        yield f"item '{item}' of vm is not ACCELERATOR/INSTANCE/spot or .../on_demand"
    elif product == "vm" and item.split("/")[1] == UNNAMED:
        yield f"item '{item}' of vm: write the instance type instead of {UNNAMED}"
    if product == "egress" and item not in EGRESS_CLASSES:
        yield f"egress class '{item}' is not one of {', '.join(EGRESS_CLASSES)}"
    if product == "store_egress" and item not in ("*", *STORE_CLASSES):
        yield f"store egress class '{item}' is not one of *, {', '.join(STORE_CLASSES)}"
    for column in ("from", "to"):
        if product in ("egress", "store_egress") and not _is_end(row["provider"], row[column]):
            yield (
                f"{column} '{row[column]}' is not one of *, {', '.join(CONTINENTS)}, "
                f"and not a region of {row['provider']}"
            )


def _is_end(provider: str, name: str) -> bool:
    """Whether `name` can be one end of a path: anywhere, a continent or a region of the provider."""
    return name in ("*", *CONTINENTS) or ("/" not in name and continent(f"{provider}/{name}") is not None)


def _day(text: str, column: str) -> date:
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"{column} '{text}' is not a date like 2023-04-01")


def _seconds(text: str, column: str) -> int | None:
    if text and not _SECONDS.fullmatch(text):
        raise ValueError(f"{column} '{text}' is not a whole number of seconds")
    return int(text) if text else None


def _amount(text: str, column: str) -> Decimal:
    if _AMOUNT.fullmatch(text):
        return Decimal(text)
    if text.lower() in ("nan", "inf", "infinity") or text.startswith("-"):
        raise ValueError(f"{column} '{text}' is not 0 or more")
    what = "an amount in US dollars" if column == "usd" else "a number of units"
    raise ValueError(f"{column} '{text}' is not {what}; write a plain number like 0.01")


def _ladder_problems(rows: list[Price], name: str) -> list[str]:
    """Check the tiers of each ladder: a gap before the first, two with the same start, mixed units."""
    ladders: dict[tuple[tuple[str, ...], date], list[Price]] = {}
    for price in rows:
        ladders.setdefault((price.key, price.valid_from), []).append(price)
    problems: list[str] = []
    for tiers in ladders.values():
        tiers.sort(key=lambda price: (price.tier_start, price.line))
        first = tiers[0]
        if first.tier_start != 0:
            problems.append(
                f"{name}:{first.line}: the first tier begins at {first.tier_start}: "
                "nothing is priced from 0 to there"
            )
        for before, price in pairwise(tiers):
            if price.tier_start == before.tier_start:
                problems.append(
                    f"{name}:{price.line}: overlaps line {before.line}: the same price of the same date twice"
                )
            elif price.unit != before.unit:
                problems.append(
                    f"{name}:{price.line}: unit '{price.unit}' differs from "
                    f"line {before.line}'s '{before.unit}'"
                )
    return problems
