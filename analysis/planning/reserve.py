"""The part of a budget that must be kept back: metering delay, shutdown time and traffic in flight.

Pure. All dollars are at full scale, as is the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

from analysis.planning.checkpoints import (
    kept_usd,
    missing_uploads,
    restore_usd,
    unpriced_uploads,
    upload_prices,
    upload_usd,
    uploads_in,
)
from cloud.prices.book import PriceBook
from cloud.prices.missing import MissingPrice, missing_egress, missing_store_egress
from cloud.prices.rows import Price
from experiments.averaging.records import region_of
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from experiments.schema.trained_model import known_model
from metrics.cost.budget import reserve_usd

_STATE_BYTES_PER_VALUE = (
    12  # weights and two moments (adam, adamw, lamb), 32 bits each: the state that a joining peer downloads
)
_OVERHEAD = Decimal("1.25")  # packet headers, repeated rounds, the DHT


@dataclass(frozen=True, slots=True)
class Pace:
    """Worst-case delays of a provider in seconds: until spending is known, until shutdown starts, until it is complete."""

    metering_period_s: float
    decision_s: float
    teardown_s: float

    @property
    def all_s(self) -> float:
        """Seconds from spending a dollar to the end of the last VM."""
        return self.metering_period_s + self.decision_s + self.teardown_s

    def reserve_usd(self, burn_usd_per_h: Decimal, egress_usd_per_h: Decimal) -> Decimal:
        """`metrics.cost.budget.reserve_usd` at this pace."""
        return reserve_usd(
            burn_usd_per_h,
            egress_usd_per_h,
            metering_period_s=self.metering_period_s,
            decision_s=self.decision_s,
            teardown_s=self.teardown_s,
        )


# Spending is checked every 5 s, a tick takes 1 s, a local VM ends within a second (the call's deadline is 60 s).
LOCAL_PACE = Pace(metering_period_s=10.0, decision_s=5.0, teardown_s=60.0)
# SkyPilot's `down` was measured at 6 to 28 s; eight VMs at a time, and one retry. If the controller is lost at that
# moment, the VMs run until their lease has expired and SkyPilot's autodown has ended them: see `pace_of`.
RENTED_PACE = Pace(metering_period_s=60.0, decision_s=30.0, teardown_s=300.0)
_AUTODOWN_S = 420.0  # five idle minutes, a check once a minute, and a measured 51 s to end the VM


def pace_of(emulation: EmulationPlan | None, rented: bool, lease_s: float) -> Pace:
    """Return the provider's pace in full-scale seconds, in which dollars are counted.

    For rented VMs the teardown time covers the loss of the controller: the VMs then run until the lease has expired
    and autodown has ended them.

    An emulated epoch is shorter than a full-scale one: its VMs are billed by the clock while it lasts, and for the
    full-scale duration at its end. So the cost of up to one full-scale epoch may not be known yet.
    """
    if rented:
        return replace(RENTED_PACE, teardown_s=max(RENTED_PACE.teardown_s, lease_s + _AUTODOWN_S))
    if emulation is None or emulation.study_epoch_s is None or emulation.epoch_s is None:
        return LOCAL_PACE
    stretch = max(1.0, emulation.study_epoch_s / emulation.epoch_s)
    late_s = emulation.study_epoch_s if stretch > 1.0 else 0.0
    local = LOCAL_PACE
    return Pace(
        local.metering_period_s * stretch + late_s, local.decision_s * stretch, local.teardown_s * stretch
    )


def epoch_egress_usd(spec: ExperimentSpec, book: PriceBook, *, rented: bool = False) -> Decimal | None:
    """Upper bound of the traffic cost of one epoch without checkpoints; None: unknown, see `unpriced_traffic`.

    `rented`: peers reach each other at public addresses, which clouds bill inside a zone too.

    Assumes that all pairs of peers exchange gradients and means with each slot at its most expensive place (for
    hierarchical averaging a slot's region is that of its first place), that one peer joins and downloads the whole
    state, and that every sample of the batch is read from the store.
    """
    groups = _groups(spec)
    model = known_model(spec.model, spec.task, spec.data)
    if model is None or model.bytes_per_sample is None:
        return None
    regions = [region_of(places[0]) for places, count in groups.items() for _ in range(count)]
    method = spec.swarm.method
    vectors = method.exchange.sent(regions)
    gradient_bytes = method.compression.gradient_bytes(model.averaged_as, model.parameters)
    state_bytes = model.parameters * _STATE_BYTES_PER_VALUE
    usd = state_usd = Decimal(0)
    for pairs, links in _routes(groups):
        a, b = (region_of(place) for place in links[0])
        share = vectors[a, b] / (regions.count(a) * (regions.count(b) - (a == b)))
        pair_bytes = int(share * gradient_bytes)
        sent = [book.egress(src, dst, pair_bytes, public=rented) for src, dst in links]
        state = [book.egress(src, dst, state_bytes, public=rented) for src, dst in links]
        if None in sent or None in state:
            return None
        usd += pairs * max(s for s in sent if s is not None)
        state_usd = max(state_usd, *(s for s in state if s is not None))
    read = spec.swarm.target_batch_size * model.bytes_per_sample
    data = [book.store_egress(spec.data.location, place, read) for places in groups for place in places]
    if None in data:
        return None
    usd += max(d for d in data if d is not None)
    return (usd + state_usd) * _OVERHEAD


def unpriced_traffic(spec: ExperimentSpec, book: PriceBook, *, rented: bool = False) -> list[str]:
    """List the routes that have no price in the book; empty if `epoch_egress_usd` is known."""
    store = spec.data.location
    unknown = [f"{src} to {dst}" for src, dst in _links(spec) if book.ladder(src, dst, public=rented) is None]
    unknown += [
        f"the store in {store} to {dst}" for dst in _places(spec) if book.store_ladder(store, dst) is None
    ]
    unknown += unpriced_uploads(spec, book)
    model = known_model(spec.model, spec.task, spec.data)
    if model is None or model.bytes_per_sample is None:
        unknown.append(f"samples of {spec.trains}, whose size is unknown")
    return list(dict.fromkeys(unknown))


def missing_traffic(spec: ExperimentSpec, book: PriceBook, *, rented: bool = False) -> list[MissingPrice]:
    """List the rows that the book lacks for the routes of `unpriced_traffic`."""
    store = spec.data.location
    missing = [
        missing_egress(book, src, dst, public=rented)
        for src, dst in _links(spec)
        if book.ladder(src, dst, public=rented) is None
    ]
    missing += [
        missing_store_egress(book, store, dst)
        for dst in _places(spec)
        if book.store_ladder(store, dst) is None
    ]
    return list(dict.fromkeys([*missing, *missing_uploads(spec, book)]))


def traffic_prices(spec: ExperimentSpec, book: PriceBook, *, rented: bool = False) -> list[Price]:
    """List the rows of the book on which `epoch_egress_usd` rests, each ladder by its first tier."""
    ladders = [book.ladder(src, dst, public=rented) for src, dst in _links(spec)]
    ladders += [book.store_ladder(spec.data.location, dst) for dst in _places(spec)]
    rows = [ladder.tiers[0] for ladder in ladders if ladder is not None]
    return list(dict.fromkeys([*rows, *upload_prices(spec, book)]))


def _links(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    """Every route that bytes between peers may take."""
    return (link for _, links in _routes(_groups(spec)) for link in links)


def _places(spec: ExperimentSpec) -> Iterator[str]:
    """Every place where a peer may be."""
    return (place for group in _groups(spec) for place in group)


def _groups(spec: ExperimentSpec) -> dict[tuple[str, ...], int]:
    """Count the slots with each list of places."""
    groups: dict[tuple[str, ...], int] = {}
    for slot in slots(spec):
        places = tuple(p.infra for p in slot.places)
        groups[places] = groups.get(places, 0) + 1
    return groups


def _routes(groups: dict[tuple[str, ...], int]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """For each ordered pair of groups yield the number of slot pairs and the possible routes of one pair."""
    for (here, n), (there, m) in product(groups.items(), repeat=2):
        pairs = n * m - (n if here == there else 0)
        if pairs:
            yield pairs, list(product(here, there))


def egress_ceiling_usd_per_h(
    epoch_usd: Decimal, epoch_s: float, pace: Pace, uploads_usd: Decimal = Decimal(0)
) -> Decimal:
    """Dollars per hour that, over `pace.all_s`, add up to the most that traffic may cost until the run has ended.

    Traffic is metered at the end of its epoch, so one whole epoch counts as in flight in addition to what is sent
    during the shutdown. `uploads_usd`: see `uploads_in_flight_usd`.
    """
    epochs = Decimal(1) + Decimal(str(pace.all_s)) / Decimal(str(max(epoch_s, 1.0)))
    return (epoch_usd * epochs + uploads_usd) * Decimal(3600) / Decimal(str(pace.all_s))


def uploads_in_flight_usd(
    spec: ExperimentSpec, book: PriceBook, epoch_s: float, pace: Pace
) -> Decimal | None:
    """The most that checkpoints may cost until the run has ended, the one in progress included; None: unknown.

    Bytes of an upload are metered at the end of an epoch, like other traffic. All peers may be lost and download one.
    """
    usd, restore, kept = upload_usd(spec, book), restore_usd(spec, book), kept_usd(spec, book, pace.all_s)
    if usd is None or restore is None or kept is None:
        return None
    return (usd * uploads_in(spec, epoch_s + pace.all_s, epoch_s) + restore) * _OVERHEAD + kept
