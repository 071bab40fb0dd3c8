"""A ladder of marginal tiers, and the dollars of an amount on it: exact, in Decimal."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

from cloud.prices.rows import Price

UNIT_BYTES: Mapping[str, int] = {"GB": 10**9, "GiB": 2**30, "GB-month": 10**9, "GiB-month": 2**30}


@dataclass(frozen=True, slots=True)
class Ladder:
    """What one kind of traffic (or stored byte) costs as a month's amount grows.

    All traffic with the same `key` climbs the same ladder within a month. `unit_bytes`: bytes of the unit
    that `tiers` (ascending from 0) are priced in.
    """

    key: tuple[str, ...]
    unit_bytes: int
    tiers: tuple[Price, ...]


@contextmanager
def exact() -> Generator[None]:
    """Decimal arithmetic that loses nothing of a book's prices times bytes: 10^15 bytes over 2^30 have 45
    digits, a price up to 50 more, and Decimal's usual 28 would round."""
    with localcontext(Context(prec=200)):
        yield


def tiered_usd(ladder: Ladder, amount_bytes: int, already_bytes: int = 0) -> Decimal:
    """Dollars for `amount_bytes` after `already_bytes` of the same ladder in the same month; exact.

    Never negative, monotone, continuous where tiers meet, and additive: `a + b` bytes cost what `a` cost
    and then `b` after them. Raises ValueError for a negative count of bytes.
    """
    if amount_bytes < 0 or already_bytes < 0:
        raise ValueError(f"bytes are never negative: {amount_bytes} after {already_bytes}")
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
