"""What a plan says of money and limits: how much of the budget is kept back, and what the run may not pass. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from analysis.planning.reserve import Pace, egress_ceiling_usd_per_h, epoch_egress_usd, pace_of
from cloud.prices.book import PriceBook
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec

_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class PlannedBudget:
    """The budget and what must be left of it when the run is told to end. Dollars at the study's scale."""

    budget_usd: Decimal | None
    burn_usd_per_h: Decimal | None  # all slots at once, each at its dearest place's ceiling; None: unknown
    egress_usd_per_h: Decimal | None  # the most that traffic may cost until the end
    pace: Pace

    @property
    def reserve_usd(self) -> Decimal | None:
        """What is kept back at most: (burn + egress) x (metering period + decision + teardown)."""
        if self.burn_usd_per_h is None or self.egress_usd_per_h is None:
            return None
        return self.pace.reserve_usd(self.burn_usd_per_h, self.egress_usd_per_h)

    @property
    def overshoot(self) -> str:
        """The promise, with what it depends on."""
        if self.budget_usd is None:
            return "no budget: nothing stops the run but its own end and its limits"
        if self.reserve_usd is None:
            return (
                "unknown, as the reserve is: what cannot be reckoned cannot be kept, and nothing is started"
            )
        return (
            f"0 as long as every VM ends within {self.pace.teardown_s:.0f} s of being told to; a VM that "
            "does not goes on at its own price an hour, and `orch down` ends with 5 and names it"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; dollars as strings, unknown as None."""
        return {
            "budget_usd": _money(self.budget_usd),
            "reserve_usd": None if self.reserve_usd is None else str(self.reserve_usd.quantize(_CENT)),
            "burn_usd_per_h": _money(self.burn_usd_per_h),
            "egress_usd_per_h": None
            if self.egress_usd_per_h is None
            else str(self.egress_usd_per_h.quantize(_CENT)),
            "metering_period_s": self.pace.metering_period_s,
            "decision_s": self.pace.decision_s,
            "teardown_s": self.pace.teardown_s,
            "overshoot": self.overshoot,
        }

    def too_short(self, vm_usd: Decimal) -> list[str]:
        """A note where the VMs of all epochs alone cost more than the budget has beside its reserve."""
        if self.budget_usd is None:
            return []
        left = max(Decimal(0), self.budget_usd - (self.reserve_usd or 0))
        if vm_usd <= left:
            return []
        return [
            f"the budget has ${left:.2f} to spend beside its reserve, and the VMs of all epochs alone cost ${vm_usd}: "
            "the run will stop before its end"
        ]

    def notes(self) -> list[str]:
        """What a person should know before saying yes."""
        if self.budget_usd is None or self.reserve_usd is None or self.reserve_usd < self.budget_usd:
            return []
        return [
            f"the reserve of ${self.reserve_usd:.2f} for all peers at once is not below the budget of "
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
    """The budget of an experiment whose VMs together cost `burn_usd_per_h` at most, as the controller will keep it.

    `emulation` tells the expected epoch; None: unknown, and so is what traffic may cost.
    """
    pace = pace_of(emulation, rented, spec.lease_s)
    epoch_s = emulation.reckoned_epoch_s if emulation else None
    epoch_usd = epoch_egress_usd(spec, book, rented=rented)
    egress = None
    if epoch_usd is not None and epoch_s is not None:
        egress = egress_ceiling_usd_per_h(epoch_usd, epoch_s, pace)
    return PlannedBudget(spec.budget_usd, burn_usd_per_h, egress, pace)


def limits_of(spec: ExperimentSpec) -> dict[str, Any]:
    """What the run may not pass, whatever happens, in JSON types."""
    return {
        "min_peers": spec.min_peers,
        "max_usd_per_h": _money(spec.max_usd_per_h),
        "max_wall_time_s": spec.max_wall_time_s,
        "lease_s": spec.lease_s,
        **asdict(spec.limits),
    }


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
