"""A plan as the core will be told it: the same when it is shown, before the question is asked, and when the run is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cloud.prices.book import PriceBook, load_for
from experiments.emulation.scales import EmulationPlan, resolve_emulation
from experiments.schema.models import ExperimentSpec
from orchestrator.core.state import RunSpec
from orchestrator.errors import RefusedError, UsageError
from orchestrator.launch.rented import patient, planned_quoter, unscaled
from orchestrator.launch.run_spec import check_money, run_spec


class PlannedRun(NamedTuple):
    """What follows from an experiment and its plan."""

    book: PriceBook
    emulation: EmulationPlan
    told: RunSpec


def planned_run(
    spec: ExperimentSpec, plan: Mapping[str, Any], run_id: str, *, cores: int, on: str
) -> PlannedRun:
    """The run that this plan makes. Rented VMs have the plan's places, prices and ceilings.

    Raises RefusedError when a price is unknown that must be known, or a limit cannot be kept; UsageError, SpecError,
    PriceBookError.
    """
    rented = on == "sky"
    book = load_for(spec.prices, rented=rented)
    if rented:
        _refuse_unknown_prices(spec, plan)
        emulation, ceilings = unscaled(spec, cores), plan.get("ceilings") or {}
        quote = planned_quoter(plan)
        told = run_spec(spec, run_id, book, emulation, ceilings=ceilings, rented=True, quote=quote)
        told = patient(told)
    else:
        if spec.emulation is not None and spec.emulation.network == "none":
            raise UsageError(
                f"{spec.name}: emulation.network is 'none', and the emulated cloud needs one; name it, or use --on sky"
            )
        emulation = resolve_emulation(spec, cores)
        told = run_spec(spec, run_id, book, emulation)  # here a price is what the book says, to the cent
    check_money(spec, told, book, rented=rented)
    return PlannedRun(book, emulation, told)


def _refuse_unknown_prices(spec: ExperimentSpec, plan: Mapping[str, Any]) -> None:
    """What nobody knows the price of is not rented, unless the experiment says what it may cost at most."""
    places = [place for peer in plan["peers"] for place in peer["places"]]
    unknown = sorted({p["location"] for p in places if p["ceiling_usd_per_h"] is None})
    if unknown:
        raise RefusedError(
            f"{spec.name}: nobody knows what a VM costs at {', '.join(unknown[:3])}; give the place 'max_usd_per_h', "
            "or remove it"
        )
