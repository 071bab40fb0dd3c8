"""What an experiment would rent and how long it would take, before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloud.prices.book import PriceBook
from experiments.spec.catalog import Published, StepTime, published, step_time
from experiments.spec.schema import ExperimentSpec, Resources

__all__ = ["Plan", "PlannedPeer", "Scales", "plan_of"]

_STUDY_TARGET_BATCH_SIZE = 32_768


@dataclass(frozen=True, slots=True)
class Scales:
    """How the emulation shrinks the run (1: not at all) and why it chose so."""

    bytes: float
    time: float
    samples: float
    raw_target_batch_size: int
    reasons: tuple[str, ...] = ()


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
    """A run before it starts. Times are seconds; `raw_*` on this machine's clock, others at study scale."""

    experiment: str
    model: str
    target_batch_size: int
    peers: tuple[PlannedPeer, ...]
    usd_per_h: Decimal | None  # all VMs together; None: a price is unknown
    budget_usd: Decimal | None
    price_book: str
    warmup_epochs: int
    measured_epochs: int
    scales: Scales | None  # None: nothing is emulated
    calc_s: float | None  # an epoch's calculation; None: a step time is unknown
    comm_s: float | None  # an epoch's averaging, where the study published it; None: unknown
    comm_source: str
    raw_calc_s: float | None  # all epochs' calculation: the run lasts longer than this
    raw_duration_s: float | None  # all epochs with their averaging, start and end left out; None: unknown
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; dollars as strings, unknown as None.

        `prediction` is the place of throughput, granularity and $/1M predicted from a model of the
        network. There is no such model yet, so it is None.
        """
        return {
            "experiment": self.experiment,
            "model": self.model,
            "target_batch_size": self.target_batch_size,
            "emulated": self.scales is not None,
            "scales": _scales(self.scales),
            "raw_target_batch_size": self.scales.raw_target_batch_size if self.scales else self.target_batch_size,
            "scale_reasons": list(self.scales.reasons) if self.scales else [],
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
            "calc_s": self.calc_s,
            "comm_s": self.comm_s,
            "comm_source": self.comm_source,
            "raw_calc_s": self.raw_calc_s,
            "raw_duration_s": self.raw_duration_s,
            "prediction": None,
            "notes": list(self.notes),
        }


def plan_of(spec: ExperimentSpec, book: PriceBook, scales: Scales | None) -> Plan:
    """The plan of an experiment.

    Calculation: target batch size / the sum over peers of batch size / step time (the accelerators' table).
    Communication: the study's figure where this is one of its experiments, unknown otherwise. `usd_per_h`
    sums the first choice of every slot; one unknown price makes it unknown.
    """
    peers: list[PlannedPeer] = []
    rates_sps: list[float | None] = []
    for group in spec.peers:
        choices = group.alternatives
        for number in range(group.count):
            peers.append(_peer(f"{group.name}-{number}", choices, book))
            rates_sps.append(_rate_sps(spec, choices[0]))
    notes = ["throughput and $/1M samples are not predicted: that comes with a later release"]
    total = _sum([peer.usd_per_h for peer in peers])
    if total is None:
        missing = sorted({f"{p.accelerator} in {p.location}" for p in peers if p.usd_per_h is None})
        notes.append(f"{book.name} has no price of {', '.join(missing)}: the total is unknown")
    known = [rate for rate in rates_sps if rate is not None]
    calc_s = spec.swarm.target_batch_size / sum(known) if len(known) == len(rates_sps) else None
    if calc_s is None:
        notes.append(f"no step time of {spec.model} on some of these accelerators: the duration is unknown")
    comm_s, comm_source = _communication(spec)
    epochs = spec.measure.warmup_epochs + spec.measure.epochs
    shrink = scales.raw_target_batch_size / spec.swarm.target_batch_size / scales.time if scales else 1.0
    raw_calc_s = calc_s * shrink * epochs if calc_s is not None else None
    raw_duration_s = None
    if raw_calc_s is not None and comm_s is not None:
        raw_duration_s = raw_calc_s + epochs * comm_s / (scales.time if scales else 1.0)
    return Plan(
        experiment=spec.name,
        model=spec.model,
        target_batch_size=spec.swarm.target_batch_size,
        peers=tuple(peers),
        usd_per_h=total,
        budget_usd=spec.budget_usd,
        price_book=book.name,
        warmup_epochs=spec.measure.warmup_epochs,
        measured_epochs=spec.measure.epochs,
        scales=scales,
        calc_s=calc_s,
        comm_s=comm_s,
        comm_source=comm_source,
        raw_calc_s=raw_calc_s,
        raw_duration_s=raw_duration_s,
        notes=tuple(notes),
    )


def _peer(slot: str, choices: Sequence[Resources], book: PriceBook) -> PlannedPeer:
    first = choices[0]
    price = book.vm(first.infra, first.accelerators, first.use_spot)
    return PlannedPeer(
        slot=slot,
        location=first.infra,
        accelerator=first.accelerators,
        use_spot=first.use_spot,
        usd_per_h=price.usd if price else None,
        price_source=f"{book.name}:{price.line}: {price.source}" if price else f"not in {book.name}",
        alternatives=tuple(choice.infra for choice in choices[1:]),
    )


def _rate_sps(spec: ExperimentSpec, choice: Resources) -> float | None:
    found: StepTime | None = step_time(spec.model, choice.accelerators)
    return found.batch_size / found.step_s if found else None


def _communication(spec: ExperimentSpec) -> tuple[float | None, str]:
    known: Published | None = published(spec.name)
    if (
        known is None
        or known.model != spec.model
        or known.vms != spec.peer_count
        or spec.swarm.target_batch_size != _STUDY_TARGET_BATCH_SIZE
    ):
        return None, "not an experiment of the study: unknown before the run"
    return known.comm_s, f"the study's {known.run}"


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)


def _scales(scales: Scales | None) -> Mapping[str, float]:
    if scales is None:
        return {"bytes": 1.0, "time": 1.0, "samples": 1.0}
    return {"bytes": scales.bytes, "time": scales.time, "samples": scales.samples}
