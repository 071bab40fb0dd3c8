"""Checkpoints of a plan: who writes them, their expected size and number, and what their upload costs. Pure.

So are downloads of one by all peers, as after a loss of all of them, and what keeping them costs until the run ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloud.prices.book import PriceBook, tiered_usd
from cloud.prices.missing import MissingPrice, missing_egress, missing_storage
from cloud.prices.rows import Price
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from experiments.schema.trained_model import known_model
from metrics.cost.ledger import MONTH_S

_GB = 10**9
_VALUE_BYTES = 4  # weights and the optimizer's state are stored in 32 bits


@dataclass(frozen=True, slots=True)
class PlannedCheckpoints:
    """The expected checkpoints of a run. None: unknown."""

    writer: str  # the slot whose peer writes them as long as it trains
    location: str  # its first place
    bytes: int | None  # of one
    count: int | None
    usd: Decimal | None  # for sending all of them from there
    restore_usd: Decimal | None  # for one download by the peer of each slot, at its first place
    kept_usd: Decimal | None  # for keeping the newest `keep` as long as the run trains

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with dollars as strings."""
        return {
            "writer": self.writer,
            "location": self.location,
            "bytes": self.bytes,
            "count": self.count,
            "usd": _as_text(self.usd),
            "restore_usd": _as_text(self.restore_usd),
            "kept_usd": _as_text(self.kept_usd),
        }


def planned_checkpoints(
    spec: ExperimentSpec, book: PriceBook, duration_s: float | None, start_epoch: int = 0
) -> PlannedCheckpoints | None:
    """Plan the checkpoints of an experiment; None if it stores none.

    `start_epoch`: of the checkpoint with which the run begins. `duration_s`: of the epochs after it, at full scale.
    """
    if spec.checkpoint is None:
        return None
    writer = writers_of(spec, book)[0]
    place = next(slot.places[0].infra for slot in slots(spec) if slot.name == writer)
    one, count = checkpoint_bytes(spec), _count(spec, duration_s, start_epoch)
    usd = None
    if one is not None and count is not None:
        usd = book.upload(place, spec.data.location, one * count)
    firsts = [slot.places[0].infra for slot in slots(spec)]
    restore = None if one is None else _sum(book.store_egress(spec.data.location, at, one) for at in firsts)
    kept = (
        None
        if duration_s is None
        else _kept_usd(spec, book, min(spec.checkpoint.keep, count or 1), duration_s)
    )
    return PlannedCheckpoints(writer, place, one, count, usd, restore, kept)


def writers_of(spec: ExperimentSpec, book: PriceBook | None) -> tuple[str, ...]:
    """Return the slots in the order in which their peers write checkpoints: the first one that trains does.

    The slot whose first place has the cheapest price to the store comes first, slots without a price come last, and
    slots of the same price are in their order.
    """

    def usd(place: str) -> Decimal:
        price = None if book is None else book.upload(place, spec.data.location, _GB)
        return Decimal("Infinity") if price is None else price

    return tuple(slot.name for slot in sorted(slots(spec), key=lambda slot: usd(slot.places[0].infra)))


def checkpoint_bytes(spec: ExperimentSpec) -> int | None:
    """Return the expected bytes of one checkpoint: the weights and the optimizer's state. None: unknown model."""
    model, optimizer = known_model(spec.model, spec.task, spec.data), spec.swarm.optimizer
    if model is None:
        return None
    moments = (1 if optimizer.momentum else 0) if optimizer.name == "sgd" else 2
    return model.parameters * _VALUE_BYTES * (1 + moments)


def upload_usd(spec: ExperimentSpec, book: PriceBook) -> Decimal | None:
    """Return the most that sending one checkpoint may cost: from the most expensive place. 0 without; None: unknown."""
    if spec.checkpoint is None:
        return Decimal(0)
    one = checkpoint_bytes(spec)
    usd = [None if one is None else book.upload(place, spec.data.location, one) for place in _places(spec)]
    known = [amount for amount in usd if amount is not None]
    return max(known) if len(known) == len(usd) else None


def restore_usd(spec: ExperimentSpec, book: PriceBook) -> Decimal | None:
    """Return the most that a download of a checkpoint by all peers may cost. 0 without checkpoints; None: unknown."""
    if spec.checkpoint is None:
        return Decimal(0)
    one = checkpoint_bytes(spec)
    if one is None:
        return None
    total = Decimal(0)
    for slot in slots(spec):
        usd = [book.store_egress(spec.data.location, place.infra, one) for place in slot.places]
        known = [amount for amount in usd if amount is not None]
        if len(known) < len(usd):
            return None
        total += max(known)
    return total


def kept_usd(spec: ExperimentSpec, book: PriceBook, seconds: float) -> Decimal | None:
    """Return the most that keeping checkpoints may cost in a time: `keep`, and the newest before older ones are deleted.

    0 without checkpoints; None: unknown.
    """
    return Decimal(0) if spec.checkpoint is None else _kept_usd(spec, book, spec.checkpoint.keep + 1, seconds)


def uploads_in(spec: ExperimentSpec, seconds: float, epoch_s: float) -> int:
    """Return the most checkpoints that are sent in a time: one in progress, those that become due, and the last one."""
    if spec.checkpoint is None:
        return 0
    every = spec.checkpoint.every_epochs
    interval_s = spec.checkpoint.every_s if every is None else every * epoch_s
    return 2 + math.floor(seconds / max(1.0, interval_s or 0.0))


def unpriced_uploads(spec: ExperimentSpec, book: PriceBook) -> list[str]:
    """List the routes to the store, and the storage, without a price."""
    if spec.checkpoint is None:
        return []
    store = spec.data.location
    return [
        *(
            f"{place} to the store in {store}"
            for place in _places(spec)
            if book.upload_ladder(place, store) is None
        ),
        *([f"storage at {store}"] if book.storage_ladder(store) is None else ()),
    ]


def missing_uploads(spec: ExperimentSpec, book: PriceBook) -> list[MissingPrice]:
    """List the rows that the book lacks for the routes of `unpriced_uploads`."""
    if spec.checkpoint is None:
        return []
    store = spec.data.location
    lacking = [place for place in _places(spec) if book.upload_ladder(place, store) is None]
    missing = [missing_egress(book, place, store, public=False) for place in lacking]
    return missing if book.storage_ladder(store) is not None else [*missing, missing_storage(store)]


def upload_prices(spec: ExperimentSpec, book: PriceBook) -> list[Price]:
    """List the rows on which `upload_usd` rests, each ladder by its first tier."""
    ladders = (
        [book.upload_ladder(place, spec.data.location) for place in _places(spec)] if spec.checkpoint else []
    )
    return [ladder.tiers[0] for ladder in ladders if ladder is not None]


def _kept_usd(spec: ExperimentSpec, book: PriceBook, count: int, seconds: float) -> Decimal | None:
    one, ladder = checkpoint_bytes(spec), book.storage_ladder(spec.data.location)
    if one is None or ladder is None:
        return None
    return tiered_usd(ladder, one * count) * Decimal(repr(max(0.0, seconds))) / MONTH_S


def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    known = list(amounts)
    return None if None in known else sum((usd for usd in known if usd is not None), Decimal(0))


def _as_text(usd: Decimal | None) -> str | None:
    return None if usd is None else str(usd.quantize(Decimal("0.0001")))


def _count(spec: ExperimentSpec, duration_s: float | None, start_epoch: int) -> int | None:
    """Return the number of checkpoints; the state at the end is stored, too."""
    assert spec.checkpoint is not None
    every, every_s = spec.checkpoint.every_epochs, spec.checkpoint.every_s
    if every is not None:
        return math.ceil((spec.measure.all_epochs - start_epoch) / every)
    return None if duration_s is None or every_s is None else math.floor(duration_s / every_s) + 1


def _places(spec: ExperimentSpec) -> list[str]:
    return list(dict.fromkeys(place.infra for slot in slots(spec) for place in slot.places))
