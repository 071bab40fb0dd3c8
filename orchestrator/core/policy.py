"""Where and when to retry a request, and when to give up. Pure; randomness is passed in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, Zone

Jitter = Callable[[], float]
"""Returns a number in [0, 1) from the controller's seeded generator."""


def back_off_s(policy: Policy, attempt: int, jitter: Jitter) -> float:
    """Seconds to wait before attempt `attempt` + 1: doubles from the base up to the maximum; jitter at most halves it."""
    # 2.0 ** 1024 overflows; the maximum is reached long before.
    full_s = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** min(attempt, 60))
    return full_s * (0.5 + 0.5 * jitter())


def first_place(spec: SlotSpec) -> int:
    """Index of the first place of a slot."""
    return _by_price(spec)[0] if spec.policy.replace == "cheapest_place" else 0


def next_place(spec: SlotSpec, place: int, refusals: int) -> int:
    """Index of the next place after a loss (`refusals` 0) or after that many consecutive refusals."""
    match spec.policy.replace:
        case "next_place":
            return (place + 1) % len(spec.places)
        case "cheapest_place":
            return _by_price(spec)[refusals % len(spec.places)]
        case "never" if refusals:
            return (place + 1) % len(spec.places)
        case _:
            return place


def places_in_order(spec: SlotSpec, place: int) -> list[int]:
    """Indices of the places to try now: `place` first, then its alternatives."""
    count = len(spec.places)
    match spec.policy.replace:
        case "next_place" | "never":
            return [(place + n) % count for n in range(count)]
        case "cheapest_place":
            return [place, *(p for p in _by_price(spec) if p != place)]
        case _:
            return [place]


def gives_up(spec: SlotSpec, lost: int, refusals: int) -> str:
    """Why a slot gives up, or ""."""
    policy = spec.policy
    if lost and policy.replace == "never":
        return "lost its VM, and its policy is to replace none"
    if lost > policy.max_replacements:
        return f"lost {lost} VMs, more than the {policy.max_replacements} replacements allowed"
    if policy.replace == "never" and refusals >= len(spec.places):
        return "no place of its list has capacity"
    if policy.replace != "wait" and refusals >= max(policy.max_refusals, len(spec.places)):
        return f"refused {refusals} times in a row"
    return ""


def refused_zone(spec: RunSpec, zone: Zone, now_s: float) -> Zone:
    """The zone after one more refusal.

    It closes after `breaker_failures` consecutive ones, and after each one of its probe.
    """
    refusals = zone.refusals + 1
    closed_until_s = now_s + spec.breaker_open_s if refusals >= spec.breaker_failures else 0.0
    return Zone(zone.market, refusals, closed_until_s)


def clock(at_s: float) -> str:
    """Time of day in UTC, e.g. "12:04:10"."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


def priced(place: Place) -> str:
    """A place with its price, e.g. "europe-west4-a at $0.21/h"."""
    where = place.zone if place.use_spot else f"{place.zone} on demand"
    return (
        f"{where} at an unknown price" if place.usd_per_h is None else f"{where} at ${place.usd_per_h:.2f}/h"
    )


def times(count: int) -> str:
    """A count in words: "once", "3 times"."""
    return "once" if count == 1 else f"{count} times"


def _by_price(spec: SlotSpec) -> list[int]:
    """Place indices, cheapest first; unknown prices last."""

    def price(index: int) -> tuple[bool, Decimal, int]:
        usd = spec.places[index].usd_per_h
        return (usd is None, usd or Decimal(0), index)

    return sorted(range(len(spec.places)), key=price)
