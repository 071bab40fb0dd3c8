"""Numbers as words: durations, dollars, rates, places, and what was emulated."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from cloud.targets import target_of


def clock(at_s: float | None) -> str:
    """Local time of day of a unix time."""
    return "--:--:--" if at_s is None else f"{datetime.fromtimestamp(at_s):%H:%M:%S}"


def counted(count: int, what: str) -> str:
    """`1 peer`, `2 peers`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def duration(seconds: float | None) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`."""
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


def number(value: float | None) -> str:
    """Three significant digits, or `unknown`."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def usd(value: Decimal | float | str | None) -> str:
    """Dollars and cents; below a dollar up to four digits after the point; `unknown` stays that."""
    if value is None:
        return "unknown"
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return "unknown"
    if not amount.is_finite():
        return "unknown"
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    whole, _, digits = f"{amount:.4f}".partition(".")
    return f"${whole}.{digits[:2]}{digits[2:].rstrip('0')}"


def place(location: object) -> str:
    """`cloud/region/zone` without the region that the zone's name repeats."""
    parts = str(location or "?").split("/")
    if len(parts) == 3 and parts[2].startswith(parts[1]):
        return f"{parts[0]}/{parts[2]}"
    return "/".join(parts)


def interval(figure: Mapping[str, Any] | None, unit: str = "") -> str:
    """`68.4 sps (67.9 to 68.9, n = 3)`: a value, its 95 % interval and n."""
    figure = figure or {}
    value, n = figure.get("value"), figure.get("n")
    head = number(value) + (f" {unit}" if unit else "")
    low, high = figure.get("low"), figure.get("high")
    if value is None:
        return "unknown"
    if low is None or high is None:
        return f"{head} (n = {n}: no interval)"
    return f"{head} (95 %: {number(low)} to {number(high)}, n = {n})"


def scales_of(run: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The scales of a run or a plan by name; none where they are unknown."""
    scales = run.get("scales") or {}
    return [(key, scales[key]) for key in ("bytes", "time", "samples") if key in scales]


def emulation_line(run: Mapping[str, Any]) -> str:
    """What of a run is not real, in one line; empty for a run on real VMs."""
    if not run.get("emulated"):
        return ""
    target = target_of(run.get("target"))
    if target.rents:
        return "Rented VMs and their real network; a small network trains, padded to the model's size and step time"
    named = scales_of(run)
    shrunk = ", ".join(f"{key} 1/{number(scale)}" for key, scale in named if scale != 1)
    scaled = f"scaled: {shrunk}" if shrunk else "not scaled" if named else "scales unknown"
    where = (
        "plain processes on loopback WITHOUT distance"
        if not target.has_distance
        else "real peers in network namespaces on this machine"
    )
    return f"Emulated cloud: {where}; {scaled}"


def owner_words(kept: str) -> str:
    """Under whose name VMs are rented, which is all that finds them should this machine be lost."""
    if not kept:
        return "owner: a name is made at the first launch, which prints it; it is the VMs' label orch-owner"
    return (
        f"owner: {kept}, the VMs' label orch-owner; should this machine be lost, "
        f"`orch reap --all --on sky --owner {kept}` on another one ends them on AWS, and other clouds' consoles show them by it"
    )
