"""A run's specification for the controller's core, and the check of its limits in dollars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from analysis.planning.checkpoints import checkpoint_bytes
from analysis.planning.plan import Quoter, place_key
from analysis.planning.price_ages import own_rows_go
from analysis.planning.reserve import (
    egress_ceiling_usd_per_h,
    epoch_egress_usd,
    missing_traffic,
    pace_of,
    unpriced_traffic,
    uploads_in_flight_usd,
)
from cloud.prices.book import PriceBook, names_of, newest
from cloud.prices.missing import MissingPrice, as_csv, missing_vms
from cloud.prices.rows import UNNAMED
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec, Resources
from experiments.schema.slots import slots
from orchestrator.core.journal import begin
from orchestrator.core.limits import unaffordable
from orchestrator.core.policy import first_place
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec
from orchestrator.core.until import Goals
from orchestrator.errors import RefusedError

_LAST_CHECKPOINT_S = (
    600.0  # for its upload, which one peer finishes after training, besides the time of its bytes
)
_SLOW_BYTES_PER_S = 2_000_000  # at which a checkpoint of any size is sent and read in time
_COMPILE_S = 600.0  # torch.compile of a large model takes minutes
_UNKNOWN_SIZE_S = 600.0  # for a checkpoint whose size is unknown


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
    epoch_s = emulation.reckoned_epoch_s
    uploads_usd = uploads_in_flight_usd(spec, book, epoch_s, pace) or Decimal(0)
    transfer_s = _transfer_s(spec)
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
        restore_s=transfer_s + compile_within_s(spec),
        straggler_s=max(60.0, round_s + 30.0) + (_LAST_CHECKPOINT_S + transfer_s if spec.checkpoint else 0.0),
        min_peers=spec.min_peers,
        max_usd_per_h=spec.max_usd_per_h,
        max_wall_s=None if spec.max_wall_time_s is None else spec.max_wall_time_s / c,
        lease_s=spec.lease_s / c,
        epochs=spec.measure.all_epochs,
        until=_goals(spec),
        **spec.limits.shrunk(c),
        # About as long as a slot's own back-off after a few refusals.
        breaker_open_s=min(300.0, 30.0 * min(slot.replace.backoff_s for slot in requested)) / c,
        metering_period_s=pace.metering_period_s,
        decision_s=pace.decision_s,
        teardown_s=pace.teardown_s,
        egress_usd_per_h=egress_ceiling_usd_per_h(egress_usd, epoch_s, pace, uploads_usd),
    )


def compile_within_s(spec: ExperimentSpec) -> float:
    """How much longer a peer may take until it is ready, because it compiles its model first; 0 without swarm.compile.

    The other accelerators of a VM compile after its first one, with what that has left in the cache.
    """
    if not spec.swarm.compile:
        return 0.0
    places = (place for group in spec.peers for place in group.alternatives)
    several = any(int(place.accelerators.partition(":")[2]) > 1 for place in places)
    return 2 * _COMPILE_S if several else _COMPILE_S


def _transfer_s(spec: ExperimentSpec) -> float:
    """The longest that sending or reading a checkpoint may take; 0 without checkpoints."""
    if spec.checkpoint is None:
        return 0.0
    size_bytes = checkpoint_bytes(spec)
    return _UNKNOWN_SIZE_S if size_bytes is None else size_bytes / _SLOW_BYTES_PER_S


def _goals(spec: ExperimentSpec) -> Goals | None:
    until = None if spec.train is None else spec.train.until
    if until is None:
        return None
    known = Goals(until.samples, until.time_s, until.usd)
    if until.metric is None:
        return known
    metric = until.metric
    return replace(known, metric=metric.name, at_most=metric.at_most, at_least=metric.at_least)


def check_money(
    spec: ExperimentSpec,
    run: RunSpec,
    book: PriceBook,
    *,
    rented: bool = False,
    traffic: bool = True,
    today: date | None = None,
) -> None:
    """Raises RefusedError if a limit in dollars cannot be kept, or allows not even one VM.

    `book` prices the traffic, and the VMs without another price. `traffic`: whether it counts. `today`: the date of
    the rows that a refusal proposes; None: left blank.
    """
    unpriced = [p for slot in run.slots for p in slot.places if p.ceiling_usd_per_h is None]
    unknown = sorted({p.location for p in unpriced})
    missing = missing_vms(book, unpriced)
    if run.budget_usd is not None and traffic:
        missing += missing_traffic(spec, book, rented=rented)
    for name, limit in (("budget", run.budget_usd), ("max_usd_per_h", run.max_usd_per_h)):
        if limit is not None and unknown:
            raise RefusedError(
                f"{spec.name}: the {name} of {limit} USD cannot be kept: {book.name} has no price for every place "
                f"({', '.join(unknown[:3])}); set 'max_usd_per_h' for the place, remove it, or "
                f"{how_to_add(spec.prices, missing, today)}"
            )
    if run.budget_usd is not None and traffic:
        _refuse_unpriced_traffic(spec, book, missing, today, rented=rented)
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


def how_to_add(prices: str, missing: Iterable[MissingPrice], today: date | None) -> str:
    """Say how to add rows to the price book of an experiment, followed by the rows to paste, each on its own line.

    `prices`: the experiment's `prices`. `today`: the date of the rows; None: left blank.
    """
    cells = "'usd' and 'source'" if today else "'usd', 'valid_from' and 'source'"
    rows, into = as_csv(missing, today), own_rows_go(prices)
    if UNNAMED in rows:
        cells += f" filled in and {UNNAMED} replaced"
    else:
        cells += " filled in"
    return f"write these rows, with {cells}, {into} (docs/prices.md):\n{rows}"


def _refuse_unpriced_traffic(
    spec: ExperimentSpec,
    book: PriceBook,
    missing: Sequence[MissingPrice],
    today: date | None,
    *,
    rented: bool,
) -> None:
    unknown = unpriced_traffic(spec, book, rented=rented)
    if not unknown:
        return
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    said = (
        f"{spec.name}: the budget of {spec.budget_usd} USD cannot be kept: {book.name} has no price for the traffic of "
        f"{', '.join(unknown[:3])}{more}"
    )
    if not missing:
        raise RefusedError(f"{said}; set data.bytes_per_sample, the bytes of a sample in the shards")
    latest, names = newest(), names_of(spec.prices)
    own = [name for name in names if name.endswith(".csv")]
    if own in ([], names) and not unpriced_traffic(spec, latest, rented=rented):
        other = ",".join([latest.name.removesuffix(".csv"), *own])
        said += f"; use a book that has them (--set prices={other}), or"
    else:
        said += ";"
    raise RefusedError(f"{said} {how_to_add(spec.prices, missing, today)}")


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
    source = f"{price.origin} ({price.valid_from}, {price.source})" if price.origin else price.source
    return Place(location, price.instance, accelerator, use_spot, price.usd, source, ceiling)
