"""Rate limits on VM requests, and limits in dollars. Pure functions that return a reason, or ""."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

from metrics.cost.budget import reserve_usd
from orchestrator.core.state import Place, RunSpec, RunState, Slot

MINUTE_S = 60.0
HOUR_S = 3600.0


class RateLimit(StrEnum):
    """A limit on VM requests per time, named by its field in the experiment."""

    VMS_PER_MIN = "limits.vms_per_min"
    REPLACEMENTS_PER_H = "limits.replacements_per_h"

    def reached(self, spec: RunSpec) -> str:
        """The reason to report when this limit is reached."""
        if self is RateLimit.VMS_PER_MIN:
            return f"{self}: {spec.vms_per_min} VMs were requested within a minute"
        return f"{self}: {spec.replacements_per_h} lost VMs were replaced within an hour"


def is_replacement(slot: Slot) -> bool:
    """Whether the slot's new VM replaces a lost one.

    Retrying elsewhere after a refusal counts as the same replacement.
    """
    return slot.lost > 0 and slot.refusals == 0


def record_request(requested_s: deque[float], replaced_s: deque[float], slot: Slot) -> None:
    """Record the request of the slot's VM at `since_s`, and drop times that have left the windows."""
    _append(requested_s, slot.since_s, MINUTE_S)
    if is_replacement(slot):
        _append(replaced_s, slot.since_s, HOUR_S)


def _append(times_s: deque[float], at_s: float, window_s: float) -> None:
    times_s.append(at_s)
    while times_s[0] <= at_s - window_s:
        times_s.popleft()


def over_rate(
    spec: RunSpec, requested_s: Sequence[float], replaced_s: Sequence[float], slot: Slot, now_s: float
) -> RateLimit | None:
    """The limit that a request for the slot would exceed now, if any."""
    # Times are ascending: the limit is reached if the limit-th time from the end is still in the window.
    limit = spec.vms_per_min
    if len(requested_s) >= limit and (limit == 0 or requested_s[-limit] > now_s - MINUTE_S):
        return RateLimit.VMS_PER_MIN
    limit = spec.replacements_per_h
    if (
        is_replacement(slot)
        and len(replaced_s) >= limit
        and (limit == 0 or replaced_s[-limit] > now_s - HOUR_S)
    ):
        return RateLimit.REPLACEMENTS_PER_H
    return None


def over_budget(state: RunState, held_usd_per_h: Decimal | None) -> str:
    """Why the run must stop for its limits in dollars, or "". All dollars are at full scale.

    The run stops when the dollars spent, plus those spent until the last VM is gone
    (`metrics.cost.budget.reserve_usd`), would reach the budget. VMs requested since the last bill count at
    the ceiling of their place. A budget cannot be guaranteed with an unknown price, so the run stops then,
    too.
    """
    spec, burn = state.spec, state.burn_usd_per_h
    if spec.max_usd_per_h is not None and burn is not None and burn > spec.max_usd_per_h:
        return f"{burn} USD an hour are rented, more than max_usd_per_h {spec.max_usd_per_h}"
    if spec.budget_usd is None:
        return ""
    reserved_usd = _reserve(state, held_usd_per_h, Decimal(0))
    if state.spent_usd is None or reserved_usd is None or state.egress_usd_per_h is None:
        return f"the budget of {spec.budget_usd} USD cannot be kept: a price is unknown"
    if state.spent_usd + reserved_usd >= spec.budget_usd:
        sums = f"{state.spent_usd:.2f} USD spent and {reserved_usd:.2f} USD to end it"
        return f"{sums} reach the budget of {spec.budget_usd} USD"
    return ""


def unaffordable(state: RunState, held_usd_per_h: Decimal | None, place: Place) -> str:
    """Why a VM at this place would exceed a limit in dollars, or "".

    Before the first bill, nothing is spent. After a restart, the bill is computed before anything is
    requested.
    """
    spec, usd = state.spec, place.ceiling_usd_per_h
    if spec.max_usd_per_h is not None:
        if usd is None or held_usd_per_h is None:
            return f"max_usd_per_h cannot be kept: a price is unknown, as that of {place.zone}"
        if held_usd_per_h + usd > spec.max_usd_per_h:
            rented = f"{held_usd_per_h:.2f} USD an hour are rented"
            return f"{place.zone} at ${usd:.2f}/h would pass max_usd_per_h {spec.max_usd_per_h} ({rented})"
    if spec.budget_usd is not None:
        spent_usd = state.spent_usd or Decimal(0)
        reserved_usd = None if usd is None else _reserve(state, held_usd_per_h, usd)
        if usd is None or reserved_usd is None:
            return f"the budget of {spec.budget_usd} USD cannot be kept: a price is unknown"
        first_usd = usd * Decimal(str(spec.first_s)) / Decimal(3600)
        if spent_usd + reserved_usd + first_usd >= spec.budget_usd:
            return (
                f"{spent_usd:.2f} USD spent, {reserved_usd:.2f} USD to end it and a VM's first {spec.first_s:.0f} s "
                f"at ${usd:.2f}/h reach the budget of {spec.budget_usd} USD"
            )
    return ""


def _reserve(state: RunState, held_usd_per_h: Decimal | None, more_usd_per_h: Decimal) -> Decimal | None:
    spec = state.spec
    rented = state.burn_usd_per_h if state.spent_usd is not None else held_usd_per_h
    if rented is None:
        return None
    egress = spec.egress_usd_per_h
    if state.egress_usd_per_h is not None:
        egress = max(egress, state.egress_usd_per_h)
    return reserve_usd(
        max(rented, held_usd_per_h or Decimal(0)) + more_usd_per_h,
        egress,
        metering_period_s=spec.metering_period_s,
        decision_s=spec.decision_s,
        teardown_s=spec.teardown_s,
    )
