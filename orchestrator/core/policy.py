"""Where and when to ask again, and when to stop spending. Pure; randomness comes in as a number."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from orchestrator.core.state import Policy, SlotSpec

__all__ = ["Jitter", "back_off_s", "first_place", "gives_up", "next_place", "over_budget"]

Jitter = Callable[[], float]
"""A number in [0, 1) from the controller's seeded generator."""


def back_off_s(policy: Policy, attempt: int, jitter: Jitter) -> float:
    """Seconds to wait before attempt `attempt` + 1: doubling from the base to the maximum, halved at most."""
    # 2.0 ** 1024 overflows; the maximum is reached long before.
    full_s = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** min(attempt, 60))
    return full_s * (0.5 + 0.5 * jitter())


def first_place(spec: SlotSpec) -> int:
    """Index of the place a slot begins with."""
    return _by_price(spec)[0] if spec.policy.replace == "cheapest_place" else 0


def next_place(spec: SlotSpec, place: int, refusals: int) -> int:
    """Index of the place to ask next, after a loss (`refusals` 0) or so many refusals in a row."""
    match spec.policy.replace:
        case "next_place":
            return (place + 1) % len(spec.places)
        case "cheapest_place":
            return _by_price(spec)[refusals % len(spec.places)]
        case "never" if refusals:
            return (place + 1) % len(spec.places)
        case _:
            return place


def gives_up(spec: SlotSpec, lost: int, refusals: int) -> str:
    """Why a slot stops trying, or "" when it goes on."""
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


def over_budget(
    budget_usd: Decimal | None,
    spent_usd: Decimal | None,
    burn_usd_per_h: Decimal | None,
    reserve_s: float,
) -> str:
    """Why spending has to stop now, or "". All dollars at the study's scale.

    Stops when spent + burn rate x reserve would reach the budget, so that what termination itself takes is
    within it. What is unknown cannot be kept within a budget.
    """
    if budget_usd is None:
        return ""
    if spent_usd is None or burn_usd_per_h is None:
        return f"the budget of {budget_usd} USD cannot be kept: a price is unknown"
    reserved_usd = burn_usd_per_h * Decimal(str(reserve_s)) / Decimal(3600)
    if spent_usd + reserved_usd >= budget_usd:
        sums = f"{spent_usd:.2f} USD spent and {reserved_usd:.2f} USD to end it"
        return f"{sums} reach the budget of {budget_usd} USD"
    return ""


def _by_price(spec: SlotSpec) -> list[int]:
    """Place indices, the cheapest first; an unknown price comes last."""

    def price(index: int) -> tuple[bool, Decimal, int]:
        usd = spec.places[index].usd_per_h
        return (usd is None, usd or Decimal(0), index)

    return sorted(range(len(spec.places)), key=price)
