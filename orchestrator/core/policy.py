"""Where and when to retry a request, and when to give up. Pure; randomness is passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, Zone

HALF_LIFE_S = 6 * 3600.0  # of the memory of failures at a place
REFUSES_S = 300.0  # how long a place counts as refusing after a failure there
_FORGOTTEN = 0.1  # failures: with fewer, the order of the list counts again

Jitter = Callable[[], float]
"""Returns a number in [0, 1) from the controller's seeded generator."""
Rank = Callable[[Place], tuple[bool, float]]
"""Returns the `zone_rank` of a place's zone now."""


def back_off_s(policy: Policy, attempt: int, jitter: Jitter) -> float:
    """Seconds to wait before attempt `attempt` + 1: doubles from the base up to the maximum; jitter at most halves it."""
    # 2.0 ** 1024 overflows; the maximum is reached long before.
    full_s = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** min(attempt, 60))
    return full_s * (0.5 + 0.5 * jitter())


def first_place(spec: SlotSpec) -> int:
    """Index of the first place of a slot."""
    return _by_price(spec)[0] if spec.policy.replace == "cheapest_place" else 0


def after_loss_s(policy: Policy, lost: int, jitter: Jitter, *, preempted: bool) -> float:
    """Seconds to wait before a lost VM is replaced. `lost`: VMs that the slot has lost, this one included."""
    if preempted and policy.replace == "any_place_up":
        return 0.0
    return back_off_s(policy, lost - 1, jitter)


def after_refusal_s(spec: SlotSpec, refusals: int, jitter: Jitter) -> float:
    """Seconds to wait after that many consecutive refusals."""
    if spec.policy.replace != "any_place_up":
        return back_off_s(spec.policy, refusals - 1, jitter)
    rounds, more = divmod(refusals, len(spec.places))
    return 0.0 if more else back_off_s(spec.policy, rounds - 1, jitter)


def next_place(spec: SlotSpec, place: int, refusals: int, rank: Rank) -> int:
    """Index of the next place after a loss (`refusals` 0) or after that many consecutive refusals."""
    match spec.policy.replace:
        case "any_place_up":
            return places_in_order(spec, place, rank)[0]
        case "next_place":
            return (place + 1) % len(spec.places)
        case "cheapest_place":
            return _by_price(spec)[refusals % len(spec.places)]
        case "never" if refusals:
            return (place + 1) % len(spec.places)
        case _:
            return place


def places_in_order(spec: SlotSpec, place: int, rank: Rank) -> list[int]:
    """Indices of the places to try now: `place` first, then its alternatives; with `any_place_up` by rank."""
    count = len(spec.places)
    match spec.policy.replace:
        case "next_place" | "never":
            return [(place + n) % count for n in range(count)]
        case "cheapest_place":
            return [place, *(p for p in _by_price(spec) if p != place)]
        case "any_place_up":
            return sorted(range(count), key=lambda p: (rank(spec.places[p]), p))
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
    if policy.replace not in ("wait", "any_place_up") and refusals >= max(
        policy.max_refusals, len(spec.places)
    ):
        return f"refused {refusals} times in a row"
    return ""


def refused_zone(spec: RunSpec, zone: Zone, now_s: float) -> Zone:
    """The zone after one more refusal.

    It closes after `breaker_failures` consecutive ones, and after each one of its probe.
    """
    refusals = zone.refusals + 1
    closed_until_s = now_s + spec.breaker_open_s if refusals >= spec.breaker_failures else 0.0
    return replace(failed_zone(zone, now_s), refusals=refusals, closed_until_s=closed_until_s, probe="")


def failed_zone(zone: Zone, now_s: float) -> Zone:
    """The zone with one more failure remembered."""
    return replace(zone, recent_failures=recent_failures(zone, now_s) + 1.0, recent_at_s=now_s)


def zone_rank(zone: Zone, now_s: float) -> tuple[bool, float]:
    """The order in which `any_place_up` asks: zones with few recent failures first, those that refuse now last.

    Of zones that refuse, the one whose last failure is longest ago comes first, so that all are asked in turn.
    """
    refuses = zone.recent_failures > 0 and now_s - zone.recent_at_s < REFUSES_S
    return refuses, zone.recent_at_s if refuses else recent_failures(zone, now_s)


def recent_failures(zone: Zone, now_s: float) -> float:
    """The failures that are remembered now; less than a tenth of one is forgotten."""
    left = zone.recent_failures * 0.5 ** (max(0.0, now_s - zone.recent_at_s) / HALF_LIFE_S)
    return left if left >= _FORGOTTEN else 0.0


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
