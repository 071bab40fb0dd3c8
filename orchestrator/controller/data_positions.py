"""Keeps, by slot, where its peers were in the data, for the peer that replaces the last one.

Meta's `data_positions` has the last position, `epoch_positions` those at the ends of epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cloud.provider import Observed
from experiments.wire.data_position import DataPosition
from experiments.wire.epoch_positions import EpochPositions
from metrics.store.database import RunStore
from orchestrator.core.state import Slot

_CHECKPOINTS = 32  # whose epochs are kept


def last_position(store: RunStore, slot: str) -> Mapping[str, Any] | None:
    """Where the slot's last peer was; None: unknown, or it had none. Raises StoreError."""
    return dict(store.meta("data_positions") or {}).get(slot)


def positions_by_epoch(store: RunStore, slot: str) -> Mapping[str, Any] | None:
    """Where the slot's peers were at the ends of epochs, as `EpochPositions.to_json`; None: unknown. Raises StoreError."""
    known = dict(store.meta("epoch_positions") or {}).get(slot)
    return None if known is None else {"since": known["since"], "at": known["at"]}


class DataPositions:
    """The positions of one run."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._known: dict[str, Any] = dict(store.meta("data_positions") or {})
        self._by_epoch: dict[str, Any] = dict(store.meta("epoch_positions") or {})
        self._checkpoints: frozenset[int] = frozenset()  # epochs of the newest ones that were reported

    def write(self, seen: Iterable[Observed], slots: Iterable[Slot]) -> None:
        """Store what the provider's list has that is new. Reports of a slot's earlier VMs and invalid ones change nothing.

        Raises StoreError.
        """
        reported = {o.vm: o for o in seen}
        slot_of = {vm: slot.name for slot in slots if (vm := slot.vm or slot.ending) in reported}
        own = [o for vm, o in reported.items() if vm in slot_of]
        fresh = {
            slot_of[o.vm]: position.to_json()
            for o in own
            if (position := DataPosition.from_json(o.status.get("data_position"))) is not None
        }
        if any(self._known.get(slot) != position for slot, position in fresh.items()):
            self._known = {**self._known, **fresh}
            self._store.set_meta("data_positions", self._known)
        found = self._checkpoints.union(*(_checkpoint_epochs(o.status) for o in own))
        self._checkpoints = frozenset(sorted(found)[-_CHECKPOINTS:])
        later = {slot_of[o.vm]: self._with(slot_of[o.vm], o) for o in own}
        if any(self._by_epoch.get(slot) != positions for slot, positions in later.items()):
            self._by_epoch = {**self._by_epoch, **{slot: p for slot, p in later.items() if p is not None}}
            self._store.set_meta("epoch_positions", self._by_epoch)

    def _with(self, slot: str, seen: Observed) -> Mapping[str, Any] | None:
        """The slot's positions at the ends of epochs, with those that its VM reports."""
        known = self._by_epoch.get(slot)
        reported = EpochPositions.from_json(seen.status.get("epoch_positions"))
        if reported is None:
            return known
        if known is None:
            before, same = EpochPositions(0), False
        else:
            before = EpochPositions.from_json({"since": known["since"], "at": known["at"]})
            before, same = before or EpochPositions(0), known["vm"] == seen.vm
        after = before.followed_by(reported, same_peer=same).thinned(self._checkpoints)
        return {"vm": seen.vm, **after.to_json()}


def _checkpoint_epochs(status: Mapping[str, Any]) -> frozenset[int]:
    """Epochs of the checkpoints that a peer stored or began with and that are not after its own epoch."""
    entries, epoch = status.get("checkpoints"), status.get("epoch")
    if not isinstance(entries, Mapping) or type(epoch) is not int:
        return frozenset()
    stored = entries.get("stored")
    listed = [*(stored[-5:] if isinstance(stored, list) else ()), entries.get("restored")]
    epochs = (one.get("epoch") for one in listed if isinstance(one, Mapping))
    return frozenset(one for one in epochs if type(one) is int and 0 <= one <= epoch)
