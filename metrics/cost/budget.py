"""What a run must keep back to stay within its budget. Pure: dollars and seconds in, dollars out."""

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
    """Dollars that are spent at most between the last sum known and the last VM's end.

    Both rates are per hour: of the VMs rented, and of the traffic in flight. The sum is as old as the metering
    period, the decision takes its time, and a VM is billed until its teardown is over. Raises ValueError for
    what is negative.
    """
    if min(burn_usd_per_h, egress_usd_per_h) < 0 or min(metering_period_s, decision_s, teardown_s) < 0:
        raise ValueError("neither dollars per hour nor seconds can be negative")
    seconds = sum((Decimal(str(s)) for s in (metering_period_s, decision_s, teardown_s)), Decimal(0))
    return (burn_usd_per_h + egress_usd_per_h) * seconds / Decimal(3600)
