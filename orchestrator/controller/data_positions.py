"""Keeps, by slot, where its last peer was in the data (meta's `data_positions`), for the peer that replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cloud.provider import Observed
from experiments.wire.data_position import DataPosition
from metrics.store.database import RunStore
from orchestrator.core.state import Slot


def last_position(store: RunStore, slot: str) -> Mapping[str, Any] | None:
    """Where the slot's last peer was; None: unknown, or it had none. Raises StoreError."""
    return dict(store.meta("data_positions") or {}).get(slot)


class DataPositions:
    """The positions of one run."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._known: dict[str, Any] = dict(store.meta("data_positions") or {})

    def write(self, seen: Iterable[Observed], slots: Iterable[Slot]) -> None:
        """Store what the provider's list has that is new. Reports of a slot's earlier VMs and invalid ones change nothing.

        Raises StoreError.
        """
        slot_of = {slot.vm or slot.ending: slot.name for slot in slots if slot.vm or slot.ending}
        fresh = {
            slot_of[o.vm]: position.to_json()
            for o in seen
            if o.vm in slot_of
            and (position := DataPosition.from_json(o.status.get("data_position"))) is not None
        }
        if any(self._known.get(slot) != position for slot, position in fresh.items()):
            self._known = {**self._known, **fresh}
            self._store.set_meta("data_positions", self._known)
