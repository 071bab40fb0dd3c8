"""The budget and limits of a plan: the reserve kept back from the budget, and the run's limits. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from analysis.planning.reserve import (
    Pace,
    egress_ceiling_usd_per_h,
    epoch_egress_usd,
    pace_of,
    uploads_in_flight_usd,
)
from cloud.prices.book import PriceBook
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec

_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class PlannedBudget:
    """The budget, and what must remain of it when the run starts to shut down. Dollars at full scale."""

    budget_usd: Decimal | None
    burn_usd_per_h: (
        Decimal | None
    )  # all slots at once, each at its most expensive place's ceiling; None: unknown
    egress_usd_per_h: Decimal | None  # the highest possible cost of traffic until the end
    pace: Pace

    @property
    def reserve_usd(self) -> Decimal | None:
        """The largest reserve: (burn + egress) x (metering period + decision + teardown)."""
        if self.burn_usd_per_h is None or self.egress_usd_per_h is None:
            return None
        return self.pace.reserve_usd(self.burn_usd_per_h, self.egress_usd_per_h)

    @property
    def overshoot(self) -> str:
        """The maximum overshoot of the budget and its condition, in words."""
        if self.budget_usd is None:
            return "no budget: only the run's end and its limits stop it"
        if self.reserve_usd is None:
            return "unknown, because the reserve is unknown: without a reserve nothing is started"
        return (
            f"0 if every VM ends within {self.pace.teardown_s:.0f} s of the request to stop; a VM that does not "
            "continues to cost its hourly price, and `orch down` exits with 5 and names it"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with dollars as strings and unknown as None."""
        return {
            "budget_usd": as_text(self.budget_usd),
            "reserve_usd": None if self.reserve_usd is None else str(self.reserve_usd.quantize(_CENT)),
            "burn_usd_per_h": as_text(self.burn_usd_per_h),
            "egress_usd_per_h": None
            if self.egress_usd_per_h is None
            else str(self.egress_usd_per_h.quantize(_CENT)),
            "metering_period_s": self.pace.metering_period_s,
            "decision_s": self.pace.decision_s,
            "teardown_s": self.pace.teardown_s,
            "overshoot": self.overshoot,
        }

    def too_short(self, vm_usd: Decimal) -> list[str]:
        """Return a note if the VMs of all epochs cost more than the budget without its reserve."""
        if self.budget_usd is None:
            return []
        left = max(Decimal(0), self.budget_usd - (self.reserve_usd or 0))
        if vm_usd <= left:
            return []
        return [
            f"without its reserve the budget has ${left:.2f}, but the VMs alone cost ${vm_usd} for all epochs: "
            "the run will stop before its end"
        ]

    def notes(self) -> list[str]:
        """Notes to show before the plan is confirmed."""
        if self.budget_usd is None or self.reserve_usd is None or self.reserve_usd < self.budget_usd:
            return []
        return [
            f"the reserve for all peers at once (${self.reserve_usd:.2f}) is not below the budget of "
            f"${self.budget_usd}: fewer peers get a VM, or none"
        ]


def planned_budget(
    spec: ExperimentSpec,
    book: PriceBook,
    burn_usd_per_h: Decimal | None,
    emulation: EmulationPlan | None,
    *,
    rented: bool,
) -> PlannedBudget:
    """Compute the budget of an experiment whose VMs together cost at most `burn_usd_per_h`, by the controller's rules.

    `emulation` gives the expected length of an epoch; if it is None, the cost of traffic is unknown.
    """
    pace = pace_of(emulation, rented, spec.lease_s)
    epoch_s = emulation.reckoned_epoch_s if emulation else None
    epoch_usd = epoch_egress_usd(spec, book, rented=rented)
    egress = None
    if epoch_usd is not None and epoch_s is not None:
        uploads_usd = uploads_in_flight_usd(spec, book, epoch_s, pace)
        if uploads_usd is not None:
            egress = egress_ceiling_usd_per_h(epoch_usd, epoch_s, pace, uploads_usd)
    return PlannedBudget(spec.budget_usd, burn_usd_per_h, egress, pace)


def limits_of(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the run's hard limits as JSON types."""
    return {
        "min_peers": spec.min_peers,
        "max_usd_per_h": as_text(spec.max_usd_per_h),
        "max_wall_time_s": spec.max_wall_time_s,
        "lease_s": spec.lease_s,
        **asdict(spec.limits),
    }


def as_text(amount: Decimal | None) -> str | None:
    """Dollars as a JSON string; None stays None."""
    return None if amount is None else str(amount)
