"""The plan of a run: what it would rent, for how long and at what price. Nothing is started. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any

from analysis.planning.budget import PlannedBudget, as_text, limits_of, planned_budget
from analysis.planning.checkpoints import PlannedCheckpoints, planned_checkpoints
from analysis.planning.ends import goal_notes, kept_notes
from analysis.planning.more_peers import more_peers
from analysis.planning.places import first_places, in_order
from analysis.planning.predicted_cost import PredictedCost, cost_of
from analysis.planning.prediction import Prediction, as_json, predict
from analysis.planning.preemptions import Preempted, SpotHistories, preempted, with_preemptions
from analysis.planning.price_ages import OldPrice, old_prices, warnings_of
from analysis.planning.reserve import missing_traffic, traffic_prices, unpriced_traffic
from analysis.planning.unused_prices import unused_rows
from cloud.prices.book import EMULATED_BOOK, PriceBook
from cloud.prices.missing import MissingPrice, missing_vms
from cloud.prices.rows import Price
from cloud.targets import TARGETS
from experiments.averaging.records import region_of
from experiments.emulation.accelerators import REAL
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec, Resources, Task
from experiments.schema.slots import Slot, slots
from experiments.schema.trained_model import known_model
from metrics.more_peers import MorePeers

TOLERANCE = Decimal("0.1")
"""Accept VM prices up to this fraction above the plan (0.1 = 10 %)."""

# Labels that every rented VM has from its creation (cloud/provider.py).
_LABELS = {
    "orch-run": "the run's id",
    "orch-slot": "the slot's name",
    "orch-owner": "its owner: <home>/owner, or ORCH_OWNER",
    "orch-vm": "its own name",
    "orch-lease-until": "unix seconds at which its lease ends",
}
_HOUR_S = Decimal(3600)
_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of one kind of VM at one place."""

    instance: str  # "unknown": the instance type is unknown
    usd_per_h: Decimal | None  # None: unknown
    source: str  # of the price, or why it is unknown
    remark: str = ""  # a note on the price, shown with the plan
    price: Price | None = None  # the row of a price book, if it is from one
    row_helps: bool = False  # the price is unknown, and a row in a price book would give it


Quoter = Callable[[str, str, bool], Quote]
"""(location, accelerator, use_spot) -> price. Makes no network requests."""


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """One possible place of a slot's VM, with the instance and its price."""

    location: str
    instance: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None
    price_source: str
    max_usd_per_h: Decimal | None  # from the experiment
    price: Price | None  # see `Quote`
    row_helps: bool
    ceiling_usd_per_h: Decimal | None  # more expensive VMs are not kept; None: unknown, or nothing is rented

    @property
    def expected_usd_per_h(self) -> Decimal | None:
        """The price, or the ceiling if the price is unknown."""
        return self.ceiling_usd_per_h if self.usd_per_h is None else self.usd_per_h

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with dollars as strings and unknown as None."""
        return {
            "location": self.location,
            "instance": self.instance,
            "accelerator": self.accelerator,
            "use_spot": self.use_spot,
            "usd_per_h": as_text(self.usd_per_h),
            "ceiling_usd_per_h": as_text(self.ceiling_usd_per_h),
            "price_source": self.price_source,
            "max_usd_per_h": as_text(self.max_usd_per_h),
        }

    @property
    def key(self) -> str:
        """See `place_key`."""
        return place_key(self.location, self.accelerator, self.use_spot)


@dataclass(frozen=True, slots=True)
class PlannedPeer:
    """One slot, with its places in the order in which they are tried."""

    slot: str
    places: tuple[PlannedPlace, ...]
    replace: str

    @property
    def first(self) -> PlannedPlace:
        """The place where its first VM is requested."""
        return self.places[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it starts. Seconds and dollars are at full scale, `raw_*` on this machine's clock."""

    experiment: str
    model: str
    target_batch_size: int
    on: str  # a launchable target of `cloud.targets`
    peers: tuple[PlannedPeer, ...]
    usd_per_h: Decimal | None  # all VMs together, each at its first place; None: a price is unknown
    dearest_usd_per_h: Decimal | None  # each at the most expensive of its places
    price_tolerance: Decimal
    budget: PlannedBudget
    limits: Mapping[str, Any]  # `analysis.planning.budget.limits_of`
    price_book: str  # for traffic, and for VMs without a quoted price
    price_book_date: str | None  # the date of its newest price
    warmup_epochs: int
    measured_epochs: int
    emulated: bool
    emulation: EmulationPlan | None  # the expected epochs; None: durations are unknown
    duration_s: float | None  # all epochs, without booting and shutdown
    raw_duration_s: float | None
    vm_usd: Decimal | None  # for duration_s: a lower bound of the bill (no egress, no booting)
    notes: tuple[str, ...]
    price_book_sha256: str
    missing_prices: tuple[MissingPrice, ...]  # rows without which a sum is unknown
    old_prices: tuple[OldPrice, ...]
    warnings: tuple[str, ...]
    prediction: Prediction  # of epochs at full scale; unknown figures are None, with the reason
    predicted_cost: PredictedCost
    more_peers: MorePeers | None  # what doubling the peers would give; None: not predicted
    preempted: Preempted | None = None  # what preemptions leave; None: none are predicted
    checkpoints: PlannedCheckpoints | None = None  # None: the experiment stores none
    network_tuning: str = "default"
    task: Mapping[str, Any] | None = None  # None: a model of models.csv

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with dollars as strings and unknown as None.

        `prediction`: the figures of `analysis.planning.prediction.as_json`, `predicted_cost.PredictedCost` and
        `metrics.more_peers.MorePeers`.
        `ceilings`: dollars per hour above which a VM is not kept, by `place_key`.
        """
        shrunk = self.emulation
        return {
            "experiment": self.experiment,
            "model": self.model,
            "task": None if self.task is None else dict(self.task),
            "target_batch_size": self.target_batch_size,
            "raw_target_batch_size": shrunk.raw_target_batch_size if shrunk else self.target_batch_size,
            "on": self.on,
            "emulated": self.emulated,
            "scales": {
                "bytes": shrunk.bytes_scale if shrunk else 1.0,
                "time": shrunk.time_scale if shrunk else 1.0,
                "samples": shrunk.samples_scale if shrunk else 1.0,
            },
            "scale_reasons": list(shrunk.reasons) if shrunk else [],
            "network_tuning": self.network_tuning,
            "peers": [self._peer(peer) for peer in self.peers],
            "usd_per_h": as_text(self.usd_per_h),
            "dearest_usd_per_h": as_text(self.dearest_usd_per_h),
            "price_tolerance": str(self.price_tolerance),
            "ceilings": self._ceilings(),
            "budget_usd": as_text(self.budget.budget_usd),
            "budget": self.budget.as_dict(),
            "limits": dict(self.limits),
            "labels": dict(_LABELS) if TARGETS[self.on].rents else {},
            "price_book": self.price_book,
            "price_book_date": self.price_book_date,
            "price_book_sha256": self.price_book_sha256,
            "missing_prices": [price.as_dict() for price in self.missing_prices],
            "old_prices": [old.as_dict() for old in self.old_prices],
            "epochs": {"warmup": self.warmup_epochs, "measured": self.measured_epochs},
            "duration_s": self.duration_s,
            "raw_duration_s": self.raw_duration_s,
            "vm_usd": as_text(self.vm_usd),
            "checkpoints": None if self.checkpoints is None else self.checkpoints.as_dict(),
            "prediction": {
                **as_json(self.prediction),
                **self.predicted_cost.as_json(),
                "more_peers": None if self.more_peers is None else self.more_peers.to_json(),
                "preemptions": None if self.preempted is None else self.preempted.as_json(),
                "unknown": [*self.prediction.unknown, *self.predicted_cost.unknown],
            },
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def _peer(self, peer: PlannedPeer) -> dict[str, Any]:
        places = [place.as_dict() for place in peer.places]
        first = {key: value for key, value in places[0].items() if key != "max_usd_per_h"}
        alternatives = [place.location for place in peer.places[1:]]
        return {
            "slot": peer.slot,
            **first,
            "alternatives": alternatives,
            "replace": peer.replace,
            "places": places,
        }

    def _ceilings(self) -> dict[str, str]:
        found = {place.key: place.ceiling_usd_per_h for peer in self.peers for place in peer.places}
        return {key: str(ceiling) for key, ceiling in sorted(found.items()) if ceiling is not None}


def place_key(location: str, accelerator: str, use_spot: bool) -> str:
    """Key of a place and what is rented there: `gcp/us-central1/us-central1-a|T4:1|spot`."""
    return f"{location}|{accelerator}|{'spot' if use_spot else 'on_demand'}"


def book_quoter(book: PriceBook) -> Quoter:
    """Return a quoter with the prices of one price book."""

    def quote(location: str, accelerator: str, use_spot: bool) -> Quote:
        price = book.vm(location, accelerator, use_spot)
        if price is None:
            why = f"{book.name} has no {'spot' if use_spot else 'on-demand'} price for it"
            return Quote("unknown", None, why, row_helps=True)
        where = f"{price.origin}: " if price.origin else ""
        return Quote(price.instance, price.usd, f"{where}{price.source}", price=price)

    return quote


def plan_of(
    spec: ExperimentSpec,
    book: PriceBook,
    emulation: EmulationPlan | None,
    *,
    on: str = "local",
    quote: Quoter | None = None,
    price_tolerance: Decimal = TOLERANCE,
    notes: Iterable[str] = (),
    today: date | None = None,
    start_epoch: int = 0,
    spot: SpotHistories | None = None,
) -> Plan:
    """Plan an experiment.

    `spot`: histories of the places with spot VMs, for what preemptions leave of the predicted samples/s.

    `start_epoch`: of the checkpoint with which the run begins; epochs, durations and dollars are those after it.

    `emulation` is the result of `experiments.emulation.scales.resolve_emulation`; its expected epochs (step times,
    slowest stream of the network) give the duration, and None means unknown. `usd_per_h` sums the first choice of
    every slot and is unknown if one price is. `quote` gives the price of a place (default: the book's), `notes` are
    added to the plan's own. `today`: old prices are warned of; the paper's prices for an emulated run are old on
    purpose.
    """
    asked = _each_once(quote or book_quoter(book))
    rented = TARGETS[on].rents
    peers = tuple(_peer(slot, asked, price_tolerance if rented else None) for slot in slots(spec))
    first = first_places(spec, lambda place: asked(place).usd_per_h)
    remarks = (asked(place).remark for slot in slots(spec) for place in slot.places)
    notes = [*notes, *dict.fromkeys(remark for remark in remarks if remark)]
    usd_per_h = _sum(peer.first.expected_usd_per_h for peer in peers)
    unknown = sorted(
        {(p.location, p.accelerator, p.price_source) for s in peers for p in s.places if p.usd_per_h is None}
    )
    if unknown:
        notes.append(
            "some places have no price: the total is unknown, or uses the place's max_usd_per_h instead"
        )
        notes += [f"{accelerator} in {location}: {why}" for location, accelerator, why in unknown]
    regions = [region_of(slot.places[0].infra) for slot in slots(spec)]
    study_calc_s = emulation.study_calc_s if emulation else None
    comm_s = emulation.comm_s * emulation.time_scale if emulation else None
    notes += spec.swarm.method.plan_notes(regions, study_calc_s, comm_s)
    unpriced = unpriced_traffic(spec, book, rented=rented)
    notes += goal_notes(spec, priced=usd_per_h is not None and not unpriced)
    notes += kept_notes(spec, rented=rented)
    notes += _above_limits(peers, usd_per_h, spec.max_usd_per_h)
    most = _sum(_most(p.ceiling_usd_per_h or p.usd_per_h for p in peer.places) for peer in peers)
    budget = planned_budget(spec, book, most, emulation, rented=rented)
    notes += budget.notes()
    if unpriced:
        notes.append(
            f"{book.name} has no price for some traffic, so its cost is unknown: {', '.join(unpriced)}"
        )
    old = ()
    if today is not None:
        old = old_prices(_priced(peers), traffic_prices(spec, book, rented=rented), today)
        if not rented:  # the paper's prices are old on purpose: emulated runs are compared with it
            old = tuple(o for o in old if not (o.price.origin or "").startswith(f"{EMULATED_BOOK}.csv:"))
    planned = [*_priced(peers), *traffic_prices(spec, book, rented=rented)]
    notes += unused_rows(spec, book, planned)
    warmup_end, measured = spec.measure.after(start_epoch)
    epochs = warmup_end - start_epoch + measured
    expected, raw = (emulation.study_epoch_s, emulation.epoch_s) if emulation else (None, None)
    duration_s = None if expected is None else expected * epochs
    prediction = predict(spec, book, rented=rented, places=first, epochs=measured)
    tbs, vms = spec.swarm.target_batch_size, _sum(peer.first.usd_per_h for peer in peers)
    samples, without = _samples(spec, tbs * epochs), prediction
    taken = None
    if spot is not None and prediction.epoch_s is not None:
        run_s = prediction.epoch_s.value * samples / tbs
        taken = preempted(spec, prediction, spot, first, [peer.first.usd_per_h for peer in peers], run_s)
        if taken is not None:
            prediction = replace(prediction, **with_preemptions(prediction, taken))
    if spot is not None and taken is None:
        notes.append(
            "the prediction assumes no preemptions: samples/s of the peers that are left are unknown"
        )
    vm_usd = None
    if usd_per_h is not None and duration_s is not None:
        vm_usd = (usd_per_h * Decimal(repr(duration_s)) / _HOUR_S).quantize(_CENT)
        notes += budget.too_short(vm_usd)
    return Plan(
        experiment=spec.name,
        model=spec.trains,
        target_batch_size=spec.swarm.target_batch_size,
        on=on,
        peers=peers,
        usd_per_h=usd_per_h,
        dearest_usd_per_h=_sum(_most(p.expected_usd_per_h for p in peer.places) for peer in peers),
        price_tolerance=price_tolerance,
        budget=budget,
        limits=limits_of(spec),
        price_book=book.name,
        price_book_date=None if book.newest_date is None else book.newest_date.isoformat(),
        warmup_epochs=warmup_end - start_epoch,
        measured_epochs=measured,
        emulated=emulation is not None and emulation.accelerators != REAL,
        emulation=emulation,
        duration_s=duration_s,
        raw_duration_s=None if raw is None else raw * epochs,
        vm_usd=vm_usd,
        notes=tuple(notes),
        price_book_sha256=book.sha256,
        missing_prices=(*_unpriced(book, peers), *missing_traffic(spec, book, rented=rented)),
        old_prices=old,
        warnings=tuple(warnings_of(old, spec.prices, price_tolerance, rented=rented)),
        prediction=prediction,
        predicted_cost=cost_of(prediction, tbs, samples, vms, taken),
        preempted=taken,
        more_peers=more_peers(spec, without, book, rented=rented, places=first, vm_usd_per_h=vms),
        checkpoints=planned_checkpoints(spec, book, duration_s, start_epoch),
        network_tuning=spec.network_tuning,
        task=None if spec.task is None else _task(spec, spec.task, emulation),
    )


def _task(spec: ExperimentSpec, task: Task, emulation: EmulationPlan | None) -> dict[str, Any]:
    """The task and its facts, as JSON types."""
    facts, model = task.facts, known_model(spec.model, task, spec.data)
    return {
        "name": task.title,
        "sha256": None if facts is None else facts.sha256,
        "parameters": None if facts is None else facts.parameters,
        "bytes_per_sample": None if model is None else model.bytes_per_sample,
        "accelerators": None if emulation is None else emulation.accelerators,
    }


def _priced(peers: tuple[PlannedPeer, ...]) -> dict[Price, dict[str, bool]]:
    """The locations whose VMs a row of a book prices, and whether they have a limit of their own."""
    found: dict[Price, dict[str, bool]] = {}
    for place in (place for peer in peers for place in peer.places):
        if place.price is not None:
            found.setdefault(place.price, {})[place.location] = place.max_usd_per_h is not None
    return found


def _unpriced(book: PriceBook, peers: tuple[PlannedPeer, ...]) -> list[MissingPrice]:
    """The rows of VMs that have neither a price nor a limit of their own."""
    places = (place for peer in peers for place in peer.places)
    return missing_vms(book, (place for place in places if place.row_helps and place.max_usd_per_h is None))


def _above_limits(
    peers: tuple[PlannedPeer, ...], usd_per_h: Decimal | None, max_usd_per_h: Decimal | None
) -> list[str]:
    """Notes on places and slots that get no VM because of the experiment's limits."""
    notes = {
        f"{p.location} costs ${p.usd_per_h}/h, above its max_usd_per_h: no VM is requested there": None
        for peer in peers
        for p in peer.places
        if p.usd_per_h is not None and p.ceiling_usd_per_h is not None and p.usd_per_h > p.ceiling_usd_per_h
    }
    if max_usd_per_h is not None and usd_per_h is not None and usd_per_h > max_usd_per_h:
        notes[
            f"all VMs together cost more than max_usd_per_h (${max_usd_per_h}): not every slot gets a VM"
        ] = None
    return list(notes)


def ceiling(usd_per_h: Decimal | None, max_usd_per_h: Decimal | None, tolerance: Decimal) -> Decimal | None:
    """The maximum price of a VM: the experiment's limit, or its price plus the tolerance; None: unknown."""
    if max_usd_per_h is not None or usd_per_h is None:
        return max_usd_per_h
    return usd_per_h * (1 + tolerance) if usd_per_h else usd_per_h


def _each_once(quote: Quoter) -> Callable[[Resources], Quote]:
    """A quoter of places that asks `quote` once for each kind of VM at a place."""
    known: dict[tuple[str, str, bool], Quote] = {}

    def asked(place: Resources) -> Quote:
        key = (place.infra, place.accelerators, place.use_spot)
        if key not in known:
            known[key] = quote(*key)
        return known[key]

    return asked


def _peer(slot: Slot, asked: Callable[[Resources], Quote], tolerance: Decimal | None) -> PlannedPeer:
    places: list[PlannedPlace] = []
    for requested in in_order(slot, lambda place: asked(place).usd_per_h):
        found = asked(requested)
        places.append(
            PlannedPlace(
                location=requested.infra,
                instance=found.instance,
                accelerator=requested.accelerators,
                use_spot=requested.use_spot,
                usd_per_h=found.usd_per_h,
                price_source=found.source,
                ceiling_usd_per_h=requested.max_usd_per_h
                if tolerance is None
                else ceiling(found.usd_per_h, requested.max_usd_per_h, tolerance),
                max_usd_per_h=requested.max_usd_per_h,
                price=found.price,
                row_helps=found.row_helps,
            )
        )
    return PlannedPeer(slot.name, tuple(places), slot.replace.policy)


def _samples(spec: ExperimentSpec, planned: int) -> int:
    """Samples after which the run ends: those of its epochs, or of fewer by `train.until.samples`, at an epoch's end."""
    until = None if spec.train is None else spec.train.until
    if until is None or until.samples is None:
        return planned
    tbs = spec.swarm.target_batch_size
    return min(planned, -(-until.samples // tbs) * tbs)


def _most(amounts: Iterable[Decimal | None]) -> Decimal | None:
    known: list[Decimal] = []
    for amount in amounts:
        if amount is None:
            return None
        known.append(amount)
    return max(known)


def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total
