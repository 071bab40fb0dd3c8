"""A run's specification for the controller's core, and the check of its limits in dollars."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from analysis.planning.plan import Quoter, place_key
from analysis.planning.reserve import egress_ceiling_usd_per_h, epoch_egress_usd, pace_of, unpriced_traffic
from cloud.prices.book import PriceBook, book_names, load
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec, Resources
from experiments.schema.slots import slots
from orchestrator.core.journal import begin
from orchestrator.core.limits import unaffordable
from orchestrator.core.policy import first_place
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec
from orchestrator.errors import RefusedError


def run_spec(
    spec: ExperimentSpec,
    run_id: str,
    book: PriceBook,
    emulation: EmulationPlan,
    *,
    ceilings: Mapping[str, Any] | None = None,
    rented: bool = False,
    quote: Quoter | None = None,
) -> RunSpec:
    """The specification for the core. Deadlines grow with the experiment's own timeouts.

    `ceilings`: maximum hourly prices of the plan, by `analysis.planning.plan.place_key`; those of the
    experiment take precedence. `rented`: real VMs, which take longer to terminate. `quote`: source of the
    prices instead of the book. Until an epoch is metered, traffic counts at the upper bound of
    `analysis.planning.reserve`.
    """
    c = emulation.time_scale
    round_s = spec.swarm.averaging_timeout_s / c
    pace = pace_of(emulation, rented, spec.lease_s)
    epoch_usd = epoch_egress_usd(spec, book, rented=rented)
    # Unknown only without a budget, for which it would count: see `check_money`.
    egress_usd = Decimal(0) if epoch_usd is None else epoch_usd
    requested = slots(spec)
    return RunSpec(
        run_id=run_id,
        slots=tuple(
            SlotSpec(
                name=slot.name,
                places=tuple(_place(book, r, ceilings or {}, quote) for r in slot.places),
                policy=Policy(
                    replace=slot.replace.policy,
                    max_replacements=slot.replace.max_replacements,
                    backoff_s=slot.replace.backoff_s / c,
                    backoff_max_s=max(300.0, slot.replace.backoff_s) / c,
                ),
            )
            for slot in requested
        ),
        budget_usd=spec.budget_usd,
        silent_deadline_s=max(120.0, round_s + (emulation.calc_s or 0.0) + 60.0),
        straggler_s=max(60.0, round_s + 30.0),
        min_peers=spec.min_peers,
        max_usd_per_h=spec.max_usd_per_h,
        max_wall_s=None if spec.max_wall_time_s is None else spec.max_wall_time_s / c,
        lease_s=spec.lease_s / c,
        **spec.limits.shrunk(c),
        # About as long as a slot's own back-off after a few refusals.
        breaker_open_s=min(300.0, 30.0 * min(slot.replace.backoff_s for slot in requested)) / c,
        metering_period_s=pace.metering_period_s,
        decision_s=pace.decision_s,
        teardown_s=pace.teardown_s,
        egress_usd_per_h=egress_ceiling_usd_per_h(egress_usd, emulation.reckoned_epoch_s, pace),
    )


def check_money(spec: ExperimentSpec, run: RunSpec, book: PriceBook, *, rented: bool = False) -> None:
    """Raises RefusedError if a limit in dollars cannot be kept, or allows not even one VM.

    `book` prices the traffic, and the VMs without another price.
    """
    places = [p for slot in run.slots for p in slot.places]
    unknown = sorted({p.location for p in places if p.ceiling_usd_per_h is None})
    for name, limit in (("budget", run.budget_usd), ("max_usd_per_h", run.max_usd_per_h)):
        if limit is not None and unknown:
            raise RefusedError(
                f"{spec.name}: the {name} of {limit} USD cannot be kept: {book.name} has no price for every place "
                f"({', '.join(unknown[:3])}); set 'max_usd_per_h' for the place, remove it, or choose another price book"
            )
    if run.budget_usd is not None:
        _refuse_unpriced_traffic(spec, book, rented)
    cheapest = sorted(min(p.ceiling_usd_per_h or Decimal(0) for p in slot.places) for slot in run.slots)
    least_usd = sum(cheapest[: run.min_peers], Decimal(0))
    if run.max_usd_per_h is not None and least_usd > run.max_usd_per_h:
        raise RefusedError(
            f"{spec.name}: max_usd_per_h is {run.max_usd_per_h}, but min_peers ({run.min_peers}) cost at least "
            f"{least_usd:.2f} USD an hour; raise it or request less"
        )
    if run.budget_usd is not None:
        first = run.slots[0]
        reason = unaffordable(begin(run), Decimal(0), first.places[first_place(first)])
        if reason:
            raise RefusedError(
                f"{spec.name}: the budget allows not even the first VM ({reason}); raise budget_usd"
            )


def _refuse_unpriced_traffic(spec: ExperimentSpec, book: PriceBook, rented: bool) -> None:
    unknown = unpriced_traffic(spec, book, rented=rented)
    if not unknown:
        return
    others = [name for name in book_names() if not unpriced_traffic(spec, load(name), rented=rented)]
    other = f"use one that has them (--set prices={others[0]}), " if others else ""
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    raise RefusedError(
        f"{spec.name}: the budget of {spec.budget_usd} USD cannot be kept: {book.name} has no price for the traffic of "
        f"{', '.join(unknown[:3])}{more}; {other}remove the place, or launch without budget_usd"
    )


def _place(book: PriceBook, requested: Resources, ceilings: Mapping[str, Any], quote: Quoter | None) -> Place:
    location, accelerator, use_spot = requested.infra, requested.accelerators, requested.use_spot
    planned = ceilings.get(place_key(location, accelerator, use_spot))
    ceiling = requested.max_usd_per_h or (None if planned is None else Decimal(str(planned)))
    if quote is not None:
        quoted = quote(location, accelerator, use_spot)
        return Place(
            location, quoted.instance, accelerator, use_spot, quoted.usd_per_h, quoted.source, ceiling
        )
    price = book.vm(location, accelerator, use_spot)
    if price is None:
        why = f"{book.name} has no {'spot' if use_spot else 'on-demand'} price of {accelerator} at {location}"
        return Place(location, "unknown", accelerator, use_spot, None, why, ceiling)
    source = f"{book.name}:{price.line} ({price.valid_from}, {price.source})" if price.line else price.source
    return Place(location, price.instance, accelerator, use_spot, price.usd, source, ceiling)
