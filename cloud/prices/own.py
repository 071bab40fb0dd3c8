"""Prices of the user's own machines: always 0, and therefore in no book."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from cloud.prices.ladder import UNIT_BYTES, Ladder
from cloud.prices.rows import Price

_SOURCE = "your own machine: neither its hours nor its traffic are billed"


def own_vm(accelerator: str) -> Price:
    """Price of an hour of the user's own machine: $0."""
    return _nothing("vm", f"{accelerator}/own/on_demand", "h")


def own_ladder() -> Ladder:
    """Price tiers of what the user's own machine sends: $0 for any amount."""
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
