"""Histories and snapshots of spot prices, and their readers. Pure.

A price says what a VM costs where it can be had. It does not say that one can be had, nor when one is
interrupted: that is a `History`.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from cloud.spot.text import LATEST_AT_S, HistoryError, item_line, read_json, read_text, sha256_of

CATALOG_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "SpotPrice", "Region")
_AWS_KEYS = ("Timestamp", "AvailabilityZone", "InstanceType", "SpotPrice")
_CLOCK_S = 3600  # by which this machine's clock may be slow
_LARGEST_USD = Decimal(10**6)


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """The price of one offer from `at_s` until the next price of the same offer. None: the source does not say."""

    at_s: float | None  # Unix time; None in a snapshot without a date
    region: str
    zone: str | None
    instance: str | None  # None: the price of the accelerator alone (SkyPilot's catalog of GCP)
    product: str | None  # AWS's product description, such as Linux/UNIX
    accelerator: str | None
    usd_per_h: Decimal

    @property
    def offer(self) -> tuple[str, str, str, str, str]:
        """What is priced: region, zone, instance, product and accelerator, "" for unknown."""
        return (
            self.region,
            self.zone or "",
            self.instance or "",
            self.product or "",
            self.accelerator or "",
        )


@dataclass(frozen=True)
class PriceHistory:
    """Spot prices of one source, by time and offer."""

    source: str
    sha256: str  # of the source's bytes
    prices: tuple[SpotPrice, ...]
    place: str | None = None
    accelerator: str | None = None

    def __post_init__(self) -> None:
        if not self.prices:
            raise ValueError("a price history has at least one price")
        if any(not price.usd_per_h.is_finite() or price.usd_per_h <= 0 for price in self.prices):
            raise ValueError("a price is finite and above 0")
        if any(price.at_s is not None and not 0 <= price.at_s <= LATEST_AT_S for price in self.prices):
            raise ValueError("the dates of prices are of the years 1970 to 9999")


@dataclass(frozen=True, slots=True)
class Series:
    """The prices of one offer."""

    region: str
    zone: str | None
    instance: str | None
    product: str | None
    accelerator: str | None
    prices: int
    lowest_usd_per_h: Decimal
    median_usd_per_h: Decimal  # of the stated prices, not weighted by time
    highest_usd_per_h: Decimal


@dataclass(frozen=True, slots=True)
class PriceFacts:
    """Facts of a price history; None is unknown."""

    prices: int
    first_at_s: float | None
    last_at_s: float | None
    contradictions: int  # further, different prices of one offer at one time
    series: tuple[Series, ...]


def price_facts(history: PriceHistory) -> PriceFacts:
    """Derive the facts of one price history."""
    offers: dict[tuple[str, ...], list[SpotPrice]] = {}
    stated: dict[tuple[object, ...], set[Decimal]] = {}
    for price in history.prices:
        offers.setdefault(price.offer, []).append(price)
        stated.setdefault((price.offer, price.at_s), set()).add(price.usd_per_h)
    times = [price.at_s for price in history.prices if price.at_s is not None]
    return PriceFacts(
        prices=len(history.prices),
        first_at_s=min(times, default=None),
        last_at_s=max(times, default=None),
        contradictions=sum(len(usd) - 1 for usd in stated.values()),
        series=tuple(_series(offers[offer]) for offer in sorted(offers)),
    )


def read_aws_prices(name: str, content: bytes, now_s: float = math.inf) -> PriceHistory:
    """Read AWS's spot price history, `{"SpotPriceHistory": [...]}` or only the list, into prices by time.

    It is the output of `aws ec2 describe-spot-price-history --output json`. A time without a zone is UTC.
    Raises HistoryError.
    """
    text = read_text(name, content)
    document = read_json(name, text)
    key = "SpotPriceHistory" if isinstance(document, dict) else ""
    rows = document.get(key) if isinstance(document, dict) else document
    if not isinstance(rows, list) or not rows:
        raise HistoryError(
            f"{name}:1: not a spot price history of AWS, a list SpotPriceHistory that is not empty"
        )
    found: list[SpotPrice] = []
    for index, row in enumerate(rows):
        try:
            found.append(_aws_price(row, now_s))
        except ValueError as error:
            raise HistoryError(f"{name}:{item_line(text, key, index)}: {error}") from None
    return PriceHistory(name, sha256_of(content), _sorted(found))


def read_catalog_prices(name: str, content: bytes) -> PriceHistory:
    """Read the spot prices of SkyPilot's catalog of one cloud, `vms.csv`: a snapshot, whose date it does not state.

    Rows without a spot price are left out. Raises HistoryError.
    """
    lines = csv.reader(read_text(name, content).splitlines(), strict=True)
    found: list[SpotPrice] = []
    try:
        header = next(lines, [])
        missing = [column for column in CATALOG_COLUMNS if column not in header]
        if missing:
            raise HistoryError(f"{name}:1: a catalog of SkyPilot has a column {', '.join(missing)}")
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                raise HistoryError(
                    f"{name}:{lines.line_num}: {len(cells)} cells, but {len(header)} columns; is the file complete?"
                )
            row = dict(zip(header, cells, strict=True))
            if row["SpotPrice"].strip():
                try:
                    found.append(_catalog_price(row))
                except ValueError as error:
                    raise HistoryError(f"{name}:{lines.line_num}: {error}") from None
    except csv.Error as error:
        raise HistoryError(f"{name}:{lines.line_num}: no valid CSV ({error})") from None
    if not found:
        raise HistoryError(f"{name}:1: no row has a SpotPrice")
    return PriceHistory(name, sha256_of(content), _sorted(found))


def region_of_zone(zone: str) -> str:
    """The region of an AWS zone: us-west-2 for us-west-2a, and for the local zone us-west-2-lax-1a."""
    found = re.match(r"[a-z]+(-[a-z]+)+-[0-9]+", zone)
    return found.group() if found else zone


def usd_of(value: Any) -> Decimal:
    """A price as a Decimal. Raises ValueError unless it is a finite number above 0 and at most a million."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidOperation
        usd = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError("the price must be a number of US dollars an hour") from None
    if not usd.is_finite() or not 0 < usd <= _LARGEST_USD:
        raise ValueError(f"the price must be finite, above 0 and at most {_LARGEST_USD} US dollars an hour")
    return usd


def _aws_price(row: object, now_s: float) -> SpotPrice:
    if not isinstance(row, dict):
        raise ValueError("expected a row of AWS's spot price history, an object")
    missing = [key for key in _AWS_KEYS if key not in row]
    if missing:
        raise ValueError(f"a row of AWS's spot price history has a {', '.join(missing)}")
    zone, instance, product = row["AvailabilityZone"], row["InstanceType"], row.get("ProductDescription")
    if not (isinstance(zone, str) and zone and isinstance(instance, str) and instance):
        raise ValueError("AvailabilityZone and InstanceType must be names")
    if product is not None and not isinstance(product, str):
        raise ValueError("ProductDescription must be a name")
    try:
        at = datetime.fromisoformat(str(row["Timestamp"]))
    except ValueError:
        raise ValueError("Timestamp must be a time such as 2026-11-20T12:00:00+00:00") from None
    at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not 0 <= at_s <= LATEST_AT_S:
        raise ValueError("Timestamp must be of the years 1970 to 9999")
    if at_s > now_s + _CLOCK_S:
        raise ValueError(f"{at.isoformat()} is in the future")
    return SpotPrice(at_s, region_of_zone(zone), zone, instance, product, None, usd_of(row["SpotPrice"]))


def _catalog_price(row: dict[str, str]) -> SpotPrice:
    if not row["Region"]:
        raise ValueError("the row has no Region")
    usd, count = usd_of(row["SpotPrice"]), row["AcceleratorCount"].strip()
    accelerator = row["AcceleratorName"] or None
    if accelerator is not None:
        try:
            number = float(count)
        except ValueError:
            raise ValueError("AcceleratorCount must be a number") from None
        if not 0 < number < math.inf:
            raise ValueError("AcceleratorCount must be finite and above 0")
        accelerator = f"{accelerator}:{number:g}"
    return SpotPrice(
        at_s=None,
        region=row["Region"],
        zone=row.get("AvailabilityZone") or None,
        instance=row["InstanceType"] or None,
        product=None,
        accelerator=accelerator,
        usd_per_h=usd,
    )


def _sorted(prices: Iterable[SpotPrice]) -> tuple[SpotPrice, ...]:
    return tuple(sorted(prices, key=lambda p: (p.at_s or 0.0, p.offer)))


def _series(prices: list[SpotPrice]) -> Series:
    first, usd = prices[0], [price.usd_per_h for price in prices]
    return Series(
        region=first.region,
        zone=first.zone,
        instance=first.instance,
        product=first.product,
        accelerator=first.accelerator,
        prices=len(prices),
        lowest_usd_per_h=min(usd),
        median_usd_per_h=statistics.median(usd),
        highest_usd_per_h=max(usd),
    )
