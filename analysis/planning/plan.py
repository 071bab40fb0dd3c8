"""What an experiment would rent, for how long and at what price, before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from analysis.planning.budget import PlannedBudget, limits_of, planned_budget
from analysis.planning.reserve import unpriced_traffic
from cloud.prices.book import PriceBook
from cloud.targets import TARGETS
from experiments.averaging.records import region_of
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import Slot, slots

TOLERANCE = Decimal("0.1")
"""A VM may be so much dearer than planned, as a share of its price."""

# What every rented VM is labelled with from its first moment (cloud/provider.py).
_LABELS = {
    "orch-run": "the run's id",
    "orch-slot": "the slot's name",
    "orch-owner": "whose it is: <home>/owner, or ORCH_OWNER",
    "orch-vm": "its own name",
    "orch-lease-until": "unix seconds after which nobody should need it",
}
_HOUR_S = Decimal(3600)
_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Quote:
    """What one kind of VM costs at one place."""

    instance: str  # "unknown": nobody knows which VM that would be
    usd_per_h: Decimal | None  # None: unknown
    source: str  # of the price, or why it is unknown
    remark: str = ""  # what a reader of the plan should know about its prices


Quoter = Callable[[str, str, bool], Quote]
"""Location, accelerator, use_spot -> its price; contacts nothing."""


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """One place where a slot's VM may be, with what would be rented there."""

    location: str
    instance: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None
    price_source: str
    max_usd_per_h: Decimal | None  # the experiment's own
    ceiling_usd_per_h: Decimal | None  # no dearer VM is kept; None: none is known, or nothing is rented

    @property
    def reckoned_usd_per_h(self) -> Decimal | None:
        """The price, else the ceiling: an unknown price counts as that."""
        return self.ceiling_usd_per_h if self.usd_per_h is None else self.usd_per_h

    @property
    def key(self) -> str:
        """See `place_key`."""
        return place_key(self.location, self.accelerator, self.use_spot)


@dataclass(frozen=True, slots=True)
class PlannedPeer:
    """One slot: its places in the order in which they are asked."""

    slot: str
    places: tuple[PlannedPlace, ...]
    replace: str

    @property
    def first(self) -> PlannedPlace:
        """Where its first VM is asked for."""
        return self.places[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it starts. Seconds and dollars are at the study's scale, `raw_*` on this machine's clock."""

    experiment: str
    model: str
    target_batch_size: int
    on: str  # a target of `cloud.targets` that can be started
    peers: tuple[PlannedPeer, ...]
    usd_per_h: Decimal | None  # all VMs together, each in its first place; None: a price is unknown
    dearest_usd_per_h: Decimal | None  # each in the dearest place of its list
    price_tolerance: Decimal
    budget: PlannedBudget
    limits: Mapping[str, Any]  # `analysis.planning.budget.limits_of`
    price_book: str  # of the traffic; of the VMs where nobody else has a price
    price_book_date: str | None  # from when on its newest price holds
    warmup_epochs: int
    measured_epochs: int
    emulated: bool
    emulation: EmulationPlan | None  # what is expected of its epochs; None: no duration is known
    duration_s: float | None  # all epochs; booting and taking down left out
    raw_duration_s: float | None
    vm_usd: Decimal | None  # of duration_s: a lower bound of the bill (no egress, no booting)
    notes: tuple[str, ...]
    network_tuning: str = "default"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; dollars as strings, unknown as None.

        `prediction` is the place of throughput, granularity and $/1M samples predicted with intervals.
        Nothing predicts them yet, so it is None. `ceilings`: dollars an hour above which a VM is not kept,
        by `place_key`.
        """
        shrunk = self.emulation
        return {
            "experiment": self.experiment,
            "model": self.model,
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
            "usd_per_h": _money(self.usd_per_h),
            "dearest_usd_per_h": _money(self.dearest_usd_per_h),
            "price_tolerance": str(self.price_tolerance),
            "ceilings": self._ceilings(),
            "budget_usd": _money(self.budget.budget_usd),
            "budget": self.budget.as_dict(),
            "limits": dict(self.limits),
            "labels": dict(_LABELS) if TARGETS[self.on].rents else {},
            "price_book": self.price_book,
            "price_book_date": self.price_book_date,
            "epochs": {"warmup": self.warmup_epochs, "measured": self.measured_epochs},
            "duration_s": self.duration_s,
            "raw_duration_s": self.raw_duration_s,
            "vm_usd": _money(self.vm_usd),
            "prediction": None,
            "notes": list(self.notes),
        }

    def _peer(self, peer: PlannedPeer) -> dict[str, Any]:
        first = peer.first
        return {
            "slot": peer.slot,
            "location": first.location,
            "instance": first.instance,
            "accelerator": first.accelerator,
            "use_spot": first.use_spot,
            "usd_per_h": _money(first.usd_per_h),
            "ceiling_usd_per_h": _money(first.ceiling_usd_per_h),
            "price_source": first.price_source,
            "alternatives": [place.location for place in peer.places[1:]],
            "replace": peer.replace,
            "places": [
                {
                    "location": place.location,
                    "instance": place.instance,
                    "accelerator": place.accelerator,
                    "use_spot": place.use_spot,
                    "usd_per_h": _money(place.usd_per_h),
                    "ceiling_usd_per_h": _money(place.ceiling_usd_per_h),
                    "price_source": place.price_source,
                    "max_usd_per_h": _money(place.max_usd_per_h),
                }
                for place in peer.places
            ],
        }

    def _ceilings(self) -> dict[str, str]:
        found = {place.key: place.ceiling_usd_per_h for peer in self.peers for place in peer.places}
        return {key: str(ceiling) for key, ceiling in sorted(found.items()) if ceiling is not None}


def place_key(location: str, accelerator: str, use_spot: bool) -> str:
    """One word for a place and what is rented there: `gcp/us-central1/us-central1-a|T4:1|spot`."""
    return f"{location}|{accelerator}|{'spot' if use_spot else 'on_demand'}"


def book_quoter(book: PriceBook) -> Quoter:
    """Prices of one price book."""

    def quote(location: str, accelerator: str, use_spot: bool) -> Quote:
        price = book.vm(location, accelerator, use_spot)
        if price is None:
            return Quote(
                "unknown", None, f"{book.name} has no {'spot' if use_spot else 'on-demand'} price of it"
            )
        where = f"{book.name}:{price.line}: " if price.line else ""  # 0: of no book
        return Quote(price.instance, price.usd, f"{where}{price.source}")

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
) -> Plan:
    """The plan of an experiment.

    `emulation` is `experiments.emulation.scales.resolve_emulation`'s answer: its expected epochs (step times,
    slowest stream of the network) give the duration; None: unknown. `usd_per_h` sums the first choice of every slot; one
    unknown price makes it unknown. `quote` says what a place costs (default: the book), `notes` what else there is to know.
    """
    remarks: dict[str, None] = {}  # each once, in order

    def asked(location: str, accelerator: str, use_spot: bool) -> Quote:
        found = (quote or book_quoter(book))(location, accelerator, use_spot)
        if found.remark:
            remarks[found.remark] = None
        return found

    rented = TARGETS[on].rents
    peers = tuple(_peer(slot, asked, price_tolerance if rented else None) for slot in slots(spec))
    unpredicted = "throughput and $/1M samples are not predicted: that comes with a later release"
    notes = [unpredicted, *notes, *remarks]
    usd_per_h = _sum(peer.first.reckoned_usd_per_h for peer in peers)
    unknown = sorted(
        {(p.location, p.accelerator, p.price_source) for s in peers for p in s.places if p.usd_per_h is None}
    )
    if unknown:
        notes.append(
            "not every place has a price: the total is unknown, or has the place's max_usd_per_h instead"
        )
        notes += [f"{accelerator} in {location}: {why}" for location, accelerator, why in unknown]
    regions = [region_of(slot.places[0].infra) for slot in slots(spec)]
    study_calc_s = emulation.study_calc_s if emulation else None
    comm_s = emulation.comm_s * emulation.time_scale if emulation else None
    notes += spec.swarm.method.plan_notes(regions, study_calc_s, comm_s)
    notes += _too_dear(peers, usd_per_h, spec.max_usd_per_h)
    most = _sum(_most(p.ceiling_usd_per_h or p.usd_per_h for p in peer.places) for peer in peers)
    budget = planned_budget(spec, book, most, emulation, rented=rented)
    notes += budget.notes()
    unpriced = unpriced_traffic(spec, book, rented=rented)
    if unpriced:
        notes.append(
            f"traffic has no price in {book.name}, so what it costs is unknown: {', '.join(unpriced)}"
        )
    epochs = spec.measure.warmup_epochs + spec.measure.epochs
    expected, raw = (emulation.study_epoch_s, emulation.epoch_s) if emulation else (None, None)
    duration_s = None if expected is None else expected * epochs
    vm_usd = None
    if usd_per_h is not None and duration_s is not None:
        vm_usd = (usd_per_h * Decimal(repr(duration_s)) / _HOUR_S).quantize(_CENT)
        notes += budget.too_short(vm_usd)
    return Plan(
        experiment=spec.name,
        model=spec.model,
        target_batch_size=spec.swarm.target_batch_size,
        on=on,
        peers=peers,
        usd_per_h=usd_per_h,
        dearest_usd_per_h=_sum(_most(p.reckoned_usd_per_h for p in peer.places) for peer in peers),
        price_tolerance=price_tolerance,
        budget=budget,
        limits=limits_of(spec),
        price_book=book.name,
        price_book_date=None if book.newest_date is None else book.newest_date.isoformat(),
        warmup_epochs=spec.measure.warmup_epochs,
        measured_epochs=spec.measure.epochs,
        emulated=emulation is not None and spec.emulation is not None,
        emulation=emulation,
        duration_s=duration_s,
        raw_duration_s=None if raw is None else raw * epochs,
        vm_usd=vm_usd,
        notes=tuple(notes),
        network_tuning=spec.network_tuning,
    )


def _too_dear(
    peers: tuple[PlannedPeer, ...], usd_per_h: Decimal | None, max_usd_per_h: Decimal | None
) -> list[str]:
    """Places and slots that get no VM because of the experiment's own limits."""
    notes = {
        f"{p.location} costs ${p.usd_per_h}/h, above its max_usd_per_h: no VM is taken there": None
        for peer in peers
        for p in peer.places
        if p.usd_per_h is not None and p.ceiling_usd_per_h is not None and p.usd_per_h > p.ceiling_usd_per_h
    }
    if max_usd_per_h is not None and usd_per_h is not None and usd_per_h > max_usd_per_h:
        notes[f"all VMs together are above max_usd_per_h (${max_usd_per_h}): not every slot gets a VM"] = None
    return list(notes)


def ceiling(usd_per_h: Decimal | None, max_usd_per_h: Decimal | None, tolerance: Decimal) -> Decimal | None:
    """The most a VM may cost: what the experiment says, else its price and the tolerance; None: unknown."""
    if max_usd_per_h is not None or usd_per_h is None:
        return max_usd_per_h
    return usd_per_h * (1 + tolerance) if usd_per_h else usd_per_h


def _peer(slot: Slot, quote: Quoter, tolerance: Decimal | None) -> PlannedPeer:
    places: list[PlannedPlace] = []
    for wished in slot.places:
        found = quote(wished.infra, wished.accelerators, wished.use_spot)
        places.append(
            PlannedPlace(
                location=wished.infra,
                instance=found.instance,
                accelerator=wished.accelerators,
                use_spot=wished.use_spot,
                usd_per_h=found.usd_per_h,
                price_source=found.source,
                ceiling_usd_per_h=wished.max_usd_per_h
                if tolerance is None
                else ceiling(found.usd_per_h, wished.max_usd_per_h, tolerance),
                max_usd_per_h=wished.max_usd_per_h,
            )
        )
    if slot.replace.policy == "cheapest_place":
        places.sort(key=lambda place: (place.usd_per_h is None, place.usd_per_h or 0))  # as the core does
    return PlannedPeer(slot.name, tuple(places), slot.replace.policy)


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


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
