"""Marginal price tiers, and the exact cost of an amount on them, in Decimal."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

from cloud.prices.rows import Price

UNIT_BYTES: Mapping[str, int] = {"GB": 10**9, "GiB": 2**30, "GB-month": 10**9, "GiB-month": 2**30}


@dataclass(frozen=True, slots=True)
class Ladder:
    """The price tiers of one kind of traffic (or stored byte) within a month.

    All traffic with the same `key` counts towards the same ladder. `unit_bytes`: bytes of the unit in which `tiers`
    (ascending from 0) are priced.
    """

    key: tuple[str, ...]
    unit_bytes: int
    tiers: tuple[Price, ...]


@contextmanager
def exact() -> Generator[None]:
    """Use enough precision that prices times bytes are exact.

    10^15 bytes over 2^30 have 45 digits and a price has up to 50 more; Decimal's default of 28 would round.
    """
    with localcontext(Context(prec=200)):
        yield


def tiered_usd(ladder: Ladder, amount_bytes: int, already_bytes: int = 0) -> Decimal:
    """Dollars for `amount_bytes` after `already_bytes` on the same ladder in the same month; exact.

    Never negative, monotone, continuous at tier boundaries, and additive: `a + b` bytes cost as much as `a` bytes
    followed by `b` bytes. Raises ValueError for a negative number of bytes.
    """
    if amount_bytes < 0 or already_bytes < 0:
        raise ValueError(f"the number of bytes is negative: {amount_bytes} after {already_bytes}")
    with exact():
        total = Decimal(0)
        ends = [tier.tier_start * ladder.unit_bytes for tier in ladder.tiers[1:]]
        for tier, end in zip(ladder.tiers, [*ends, None], strict=True):
            low = max(tier.tier_start * ladder.unit_bytes, Decimal(already_bytes))
            high = Decimal(already_bytes + amount_bytes)
            if end is not None:
                high = min(high, end)
            if high > low:
                total += (high - low) * tier.usd / ladder.unit_bytes
        return total
