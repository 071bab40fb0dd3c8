"""Build a scenario from an experiment: its slots, places, prices and limits, on a simulated market."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from decimal import Decimal

from analysis.planning.plan import Quoter
from cloud.prices.book import PriceBook, load_for
from cloud.prices.missing import missing_vms
from cloud.sim import SimPlace
from experiments.catalog import step_time
from experiments.schema.models import ExperimentSpec
from orchestrator.core.state import Place, RunSpec
from orchestrator.errors import UsageError
from orchestrator.launch.preemptions import preempt_options
from orchestrator.launch.rented import full_scale_emulation, patient
from orchestrator.launch.run_spec import check_money, how_to_add, run_spec
from orchestrator.quotes import sky_quoter
from orchestrator.simulation.peers import PeerModel
from orchestrator.simulation.scenario import FaultClass, Scenario, with_history

_PREEMPT_PER_H = 0.05  # per spot VM: once in 20 hours


def of_experiment(
    spec: ExperimentSpec,
    seed: int,
    *,
    days: float,
    faults: Collection[FaultClass],
    epochs: int | None = None,
    environ: Mapping[str, str],
) -> Scenario:
    """Build the run that `orch launch --on sky` would start, with a fault history drawn from the seed.

    Places, instance types and prices are those of `orch plan --on sky` (`environ` locates SkyPilot's catalogs).
    Traffic is neither billed nor included in the reserve.

    Peers train at the experiment's rate on its accelerator, for `epochs` epochs (None: those of `measure`) or, if
    0, until the time is over. Preemptions that it plans happen. `ignored` names what is left out. Raises UsageError
    for a place without a price, RefusedError if the budget is too small.
    """
    book = load_for(spec.prices, rented=True)
    quote = sky_quoter(book, environ)
    run = patient(run_spec(spec, "sim", book, full_scale_emulation(spec, 1), rented=True, quote=quote))
    max_epochs = measured_epochs(spec) if epochs is None else epochs
    # No traffic is simulated, so none is reserved for.
    run = replace(run, egress_usd_per_h=Decimal(0), epochs=max_epochs or None)
    check_money(spec, run, book, rented=True, traffic=False)
    planned = preempt_options(spec, run.run_id)
    # A planned rate of all slots replaces the usual one; that of one slot is added to it.
    usual = not planned.rate_per_h or bool(planned.slot)
    random_per_h = _PREEMPT_PER_H if "preemption" in faults and usual else 0.0
    places: dict[str, SimPlace] = {}
    for place in (p for slot in run.slots for p in slot.places):
        if place.usd_per_h is None:
            raise UsageError(_unpriced(spec, run, book, quote, place))
        known = places.get(place.location)
        usd = place.usd_per_h
        spot = usd if place.use_spot else (known.spot_usd_per_h if known else usd)
        on_demand = usd if not place.use_spot else (known.on_demand_usd_per_h if known else 3 * usd)
        places[place.location] = SimPlace(
            place.location, place.instance, place.accelerator, spot, on_demand,
            preempt_per_h=random_per_h,
        )  # fmt: skip
    accelerator = run.slots[0].places[0].accelerator
    times = step_time(spec.timed_as, accelerator, plain=spec.swarm.plain)
    if times is None:
        raise UsageError(f"{spec.name}: no step time is known for {spec.timed_as} on {accelerator}")
    batch = spec.swarm.batch_size
    model = PeerModel(
        sps=batch / (times.forward_s(batch) + times.backward_s(batch)),
        target_batch_size=spec.swarm.target_batch_size,
        max_epochs=max_epochs,
        lease_s=run.lease_s,
        waits=not run.first_alone,
    )
    made = Scenario(seed, run, tuple(places.values()), model, days * 86400.0, planned=planned)
    return with_history(made, faults)


def _unpriced(spec: ExperimentSpec, run: RunSpec, book: PriceBook, quote: Quoter, first: Place) -> str:
    """Say why a place without a price cannot be simulated, and which rows of a price book would change that."""
    said = f"{spec.name}: {first.location} cannot be simulated: {first.price_source}"
    places = [place for slot in run.slots for place in slot.places if place.usd_per_h is None]
    helped = [p for p in places if quote(p.location, p.accelerator, p.use_spot).row_helps]
    return f"{said}; {how_to_add(spec.prices, missing_vms(book, helped), None)}" if helped else said


def measured_epochs(spec: ExperimentSpec) -> int:
    """Epochs after which a run of the experiment is done."""
    return spec.measure.warmup_epochs + spec.measure.epochs


def ignored(spec: ExperimentSpec) -> list[str]:
    """Name what `of_experiment` leaves out, in sentences without a full stop."""
    first = spec.peers[0].alternatives[0].accelerators
    others = {r.accelerators for group in spec.peers for r in group.alternatives} - {first}
    left_out = [
        "traffic (egress of VMs and of the store), which is neither billed nor kept back from the budget",
        f"averaging takes {PeerModel().averaging_s:g} s in every epoch, whatever the network and the model",
    ]
    if others:
        left_out.append(f"every peer trains as fast as on {first}, also on {', '.join(sorted(others))}")
    defaults = type(spec.swarm).model_fields
    named = [
        f"swarm.{name}"
        for name in ("averaging", "overlap", "compression")
        if getattr(spec.swarm, name) != defaults[name].default
    ]
    if spec.emulation is not None:
        named.append("emulation, except its preempt")
    if named:
        left_out.append(f"without effect: {', '.join(named)}")
    return left_out
