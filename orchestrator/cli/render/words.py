"""Format durations, rates, places and the emulation for the user."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cloud.targets import target_of
from metrics.readable import duration as duration


def clock(at_s: float | None) -> str:
    """Format a unix time as local time of day."""
    return "--:--:--" if at_s is None else f"{datetime.fromtimestamp(at_s):%H:%M:%S}"


def counted(count: int, what: str) -> str:
    """Format a count: `1 peer`, `2 peers`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def number(value: float | None) -> str:
    """Format a number with three significant digits, None as `unknown`."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def place(location: object) -> str:
    """Shorten `cloud/region/zone` by the region if the zone's name repeats it."""
    parts = str(location or "?").split("/")
    if len(parts) == 3 and parts[2].startswith(parts[1]):
        return f"{parts[0]}/{parts[2]}"
    return "/".join(parts)


def interval(figure: Mapping[str, Any] | None, unit: str = "") -> str:
    """Format a value, its 95 % interval and n: `68.4 sps (95 %: 67.9 to 68.9, n = 3)`."""
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
    """Return the scales of a run or plan by name; empty if unknown."""
    scales = run.get("scales") or {}
    return [(key, scales[key]) for key in ("bytes", "time", "samples") if key in scales]


def emulation_line(run: Mapping[str, Any]) -> str:
    """Describe what is emulated in a run; empty if nothing is."""
    if not run.get("emulated"):
        return ""
    target = target_of(run.get("target"))
    if target.rents:
        return "Rented VMs and a real network; a small network is trained, padded to the model's size and step time"
    named = scales_of(run)
    shrunk = ", ".join(f"{key} 1/{number(scale)}" for key, scale in named if scale != 1)
    scaled = f"scaled: {shrunk}" if shrunk else "not scaled" if named else "scales unknown"
    where = (
        "plain processes on loopback, WITHOUT network distance"
        if not target.emulates_distance
        else "real peers in network namespaces on this machine"
    )
    return f"Emulated cloud: {where}; {scaled}"


def owner_words(kept: str) -> str:
    """Describe the owner name of rented VMs, by which they can be found if this machine is lost."""
    if not kept:
        return "owner: generated and printed by the first launch; all VMs get it as the label orch-owner"
    return (
        f"owner: {kept} (the label orch-owner of all VMs); if this machine is lost, "
        f"`orch reap --all --on sky --owner {kept}` on another machine terminates them on AWS; on other clouds, find them "
        "in the console by this label"
    )
