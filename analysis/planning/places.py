"""The order in which a slot's places are tried, and where the first VMs are requested. Pure."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from experiments.schema.models import ExperimentSpec, Resources
from experiments.schema.slots import Slot, slots

UsdPerHour = Callable[[Resources], Decimal | None]
"""The price of a VM at a place, without its traffic; None: unknown."""


def in_order(slot: Slot, usd_per_h: UsdPerHour) -> tuple[Resources, ...]:
    """Return a slot's places as the controller tries them: those of the file, or the cheapest first (`cheapest_place`).

    Places without a price come last; of equal prices the file's order decides.
    """
    if slot.replace.policy != "cheapest_place":
        return slot.places

    def rank(place: Resources) -> tuple[bool, Decimal]:
        usd = usd_per_h(place)
        return usd is None, usd or Decimal(0)

    return tuple(sorted(slot.places, key=rank))


def first_places(spec: ExperimentSpec, usd_per_h: UsdPerHour) -> tuple[Resources, ...]:
    """Return the place of each slot's first VM, in the order of the slots."""
    return tuple(in_order(slot, usd_per_h)[0] for slot in slots(spec))
