"""The reserve that keeps a run within its budget. Pure: dollars and seconds in, dollars out."""

from __future__ import annotations

from decimal import Decimal


def reserve_usd(
    burn_usd_per_h: Decimal,
    egress_usd_per_h: Decimal,
    *,
    metering_period_s: float,
    decision_s: float,
    teardown_s: float,
) -> Decimal:
    """Return the most that can be spent between the last known sum and the end of the last VM.

    `burn_usd_per_h` is the rate of the rented VMs, `egress_usd_per_h` that of the traffic in flight. The last known sum
    is up to one metering period old, the decision takes `decision_s`, and VMs are billed until their teardown is over.
    Raises ValueError for negative arguments.
    """
    if min(burn_usd_per_h, egress_usd_per_h) < 0 or min(metering_period_s, decision_s, teardown_s) < 0:
        raise ValueError("neither dollars per hour nor seconds can be negative")
    seconds = sum((Decimal(str(s)) for s in (metering_period_s, decision_s, teardown_s)), Decimal(0))
    return (burn_usd_per_h + egress_usd_per_h) * seconds / Decimal(3600)
