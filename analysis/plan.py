"""What an experiment would rent, for how long and at what price, before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloud.prices.book import PriceBook
from experiments.spec.emulation import EmulationPlan
from experiments.spec.schema import ExperimentSpec
from experiments.spec.slots import Slot, slots

__all__ = ["Plan", "PlannedPeer", "plan_of"]

_HOUR_S = Decimal(3600)
_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class PlannedPeer:
    """One slot and the first VM it would ask for."""

    slot: str
    location: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None  # None: unknown
    price_source: str
    alternatives: tuple[str, ...]  # where it would look next


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it starts. Seconds and dollars are at the study's scale, `raw_*` on this machine's clock."""

    experiment: str
    model: str
    target_batch_size: int
    peers: tuple[PlannedPeer, ...]
    usd_per_h: Decimal | None  # all VMs together; None: a price is unknown
    budget_usd: Decimal | None
    price_book: str
    warmup_epochs: int
    measured_epochs: int
    emulation: EmulationPlan | None  # None: nothing is emulated, and no duration is known
    duration_s: float | None  # all epochs; booting and taking down left out
    raw_duration_s: float | None
    vm_usd: Decimal | None  # of duration_s: a lower bound of the bill (no egress, no booting)
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; dollars as strings, unknown as None.

        `prediction` is the place of throughput, granularity and $/1M samples predicted with intervals.
        Nothing predicts them yet, so it is None.
        """
        shrunk = self.emulation
        return {
            "experiment": self.experiment,
            "model": self.model,
            "target_batch_size": self.target_batch_size,
            "raw_target_batch_size": shrunk.raw_target_batch_size if shrunk else self.target_batch_size,
            "emulated": shrunk is not None,
            "scales": {
                "bytes": shrunk.bytes_scale if shrunk else 1.0,
                "time": shrunk.time_scale if shrunk else 1.0,
                "samples": shrunk.samples_scale if shrunk else 1.0,
            },
            "scale_reasons": list(shrunk.reasons) if shrunk else [],
            "peers": [
                {
                    "slot": peer.slot,
                    "location": peer.location,
                    "accelerator": peer.accelerator,
                    "use_spot": peer.use_spot,
                    "usd_per_h": _money(peer.usd_per_h),
                    "price_source": peer.price_source,
                    "alternatives": list(peer.alternatives),
                }
                for peer in self.peers
            ],
            "usd_per_h": _money(self.usd_per_h),
            "budget_usd": _money(self.budget_usd),
            "price_book": self.price_book,
            "epochs": {"warmup": self.warmup_epochs, "measured": self.measured_epochs},
            "duration_s": self.duration_s,
            "raw_duration_s": self.raw_duration_s,
            "vm_usd": _money(self.vm_usd),
            "prediction": None,
            "notes": list(self.notes),
        }


def plan_of(spec: ExperimentSpec, book: PriceBook, emulation: EmulationPlan | None) -> Plan:
    """The plan of an experiment.

    `emulation` is `experiments.spec.emulation.resolve_emulation`'s answer: its expected epochs (step times,
    slowest stream of the network) give the duration. `usd_per_h` sums the first choice of every slot; one
    unknown price makes it unknown.
    """
    peers = tuple(_peer(slot, book) for slot in slots(spec))
    notes = ["throughput and $/1M samples are not predicted: that comes with a later release"]
    usd_per_h = _sum([peer.usd_per_h for peer in peers])
    if usd_per_h is None:
        missing = sorted({f"{p.accelerator} in {p.location}" for p in peers if p.usd_per_h is None})
        notes.append(f"{book.name} has no price of {', '.join(missing)}: the total is unknown")
    epochs = spec.measure.warmup_epochs + spec.measure.epochs
    duration_s = emulation.study_epoch_s * epochs if emulation else None
    vm_usd = None
    if usd_per_h is not None and duration_s is not None:
        vm_usd = (usd_per_h * Decimal(repr(duration_s)) / _HOUR_S).quantize(_CENT)
        if spec.budget_usd is not None and vm_usd > spec.budget_usd:
            notes.append(f"the VMs alone cost more than the budget: the run will stop at ${spec.budget_usd}")
    return Plan(
        experiment=spec.name,
        model=spec.model,
        target_batch_size=spec.swarm.target_batch_size,
        peers=peers,
        usd_per_h=usd_per_h,
        budget_usd=spec.budget_usd,
        price_book=book.name,
        warmup_epochs=spec.measure.warmup_epochs,
        measured_epochs=spec.measure.epochs,
        emulation=emulation,
        duration_s=duration_s,
        raw_duration_s=emulation.epoch_s * epochs if emulation else None,
        vm_usd=vm_usd,
        notes=tuple(notes),
    )


def _peer(slot: Slot, book: PriceBook) -> PlannedPeer:
    first = slot.places[0]
    price = book.vm(first.infra, first.accelerators, first.use_spot)
    return PlannedPeer(
        slot=slot.name,
        location=first.infra,
        accelerator=first.accelerators,
        use_spot=first.use_spot,
        usd_per_h=price.usd if price else None,
        price_source=f"{book.name}:{price.line}: {price.source}" if price else f"not in {book.name}",
        alternatives=tuple(place.infra for place in slot.places[1:]),
    )


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
