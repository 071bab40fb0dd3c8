"""Compare two price books row by row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from cloud.prices.book import PriceBook
from cloud.prices.ladder import UNIT_BYTES, exact
from cloud.prices.rows import Price


@dataclass(frozen=True, slots=True)
class Difference:
    """A price that differs between two books; None if a book lacks it. `change`: (other - this) / this, per same unit."""

    key: tuple[str, str, str, str, str]  # provider, product, from, to, item
    tier_start: Decimal
    unit: str | None
    usd: Decimal | None
    other_unit: str | None
    other_usd: Decimal | None
    change: Decimal | None


def differences(this: PriceBook, other: PriceBook, on: date | None = None) -> list[Difference]:
    """Return the rows whose price differs between the two books, sorted; without `on`, the newest prices.

    A row that only one book has is compared with what the other book charges under a wider name (the continent or `*`
    for a region), since that is what would be billed.
    """
    places = {
        (price.key, price.tier_start * UNIT_BYTES.get(price.unit, 1)): price
        for book in (other, this)
        for price in book.prices(on or date.max)
    }
    found: list[Difference] = []
    for (key, start), row in sorted(places.items(), key=lambda place: place[0]):
        here, there = this.tier(key, start, on), other.tier(key, start, on)
        change = _change(here, there)
        if here is None or there is None or change != 0:
            found.append(
                Difference(
                    key=key,
                    tier_start=row.tier_start,
                    unit=here.unit if here else None,
                    usd=here.usd if here else None,
                    other_unit=there.unit if there else None,
                    other_usd=there.usd if there else None,
                    change=change,
                )
            )
    return found


def _change(here: Price | None, there: Price | None) -> Decimal | None:
    if here is None or there is None:
        return None
    with exact():
        # Cross-multiplied, so that equal prices are exactly equal whatever their units.
        was = here.usd * UNIT_BYTES.get(there.unit, 1)
        now = there.usd * UNIT_BYTES.get(here.unit, 1)
        if was == now:
            return Decimal(0)
    return (now - was) / was if was else None
