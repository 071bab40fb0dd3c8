"""Numbers, dollars and bytes as a person reads them: no exponents, a unit that fits, a threshold instead of a tiny amount.

For sentences, pages and charts. JSON and CSV keep the exact numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

_FEW = 3
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, whole from 10^digits on; `< 0.001` below that, None as `unknown`."""
    if value is None:
        return "unknown"
    if 0 < abs(value) < 0.001:
        return "< 0.001" if value > 0 else "> -0.001"
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    """Format a duration: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "unknown"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(whole // 60, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def usd(amount: Decimal | float | str | None) -> str:
    """Format dollars: `$1,234.50`, below a dollar with up to four decimals (`$0.0897`, `$0.50`), `< $0.01` below a cent.

    None and what is no number: `unknown`.
    """
    try:
        value = math.nan if amount is None else float(amount)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return "unknown"
    sign, size_usd = ("-" if value < 0 else ""), abs(value)
    if 0 < size_usd < 0.01:
        return f"> {sign}$0.01" if sign else "< $0.01"
    if size_usd == 0 or size_usd >= 0.995:
        return f"{sign}${size_usd:,.2f}"
    decimals = f"{size_usd:.4f}"
    return f"{sign}${decimals[:4]}{decimals[4:].rstrip('0')}"


def unit_of_bytes(most_bytes: float) -> tuple[str, float]:
    """Return the largest unit of which `most_bytes` is a tenth or more, and its bytes: ("MB", 1e6)."""
    return next((unit for unit in _UNITS if abs(most_bytes) >= unit[1] / 10), _UNITS[-1])


def size(amount_bytes: float | None) -> str:
    """Format bytes with three significant digits in the unit that fits (GB is 1e9): `0.25 GB`, `16.1 kB`, `12 B`."""
    if amount_bytes is None:
        return "unknown"
    name, unit_bytes = unit_of_bytes(amount_bytes)
    return f"{number(amount_bytes / unit_bytes, 3)} {name}"


def few(names: Sequence[str], most: int = _FEW, between: str = "; ") -> str:
    """Join names or reasons; of more than `most` the first ones are given and the others counted: `a; b; c; and 5 more`."""
    others = len(names) - most
    return between.join([*names[:most], *([f"and {others} more"] if others > 0 else [])])
