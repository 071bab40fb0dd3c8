"""One's own machines: they stand in no book, because nobody bills them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from cloud.prices.ladder import UNIT_BYTES, Ladder
from cloud.prices.rows import Price

_SOURCE = "your own machine: nobody bills it by the hour, nor its uplink by the byte"


def own_vm(accelerator: str) -> Price:
    """An hour of it: $0."""
    return _nothing("vm", f"{accelerator}/own/on_demand", "h")


def own_ladder() -> Ladder:
    """What it sends: $0, however much."""
    price = _nothing("egress", "internet", "GB")
    return Ladder(price.key, UNIT_BYTES["GB"], (price,))


def _nothing(product: str, item: str, unit: str) -> Price:
    return Price(
        provider="onprem",
        product=product,
        src="*",
        dst="*",
        item=item,
        unit=unit,
        tier_start=Decimal(0),
        usd=Decimal(0),
        minimum_s=None,
        valid_from=date.min,
        source=_SOURCE,
        line=0,
    )
