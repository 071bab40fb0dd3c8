"""What was seen, as events: the provider's list, the swarm's list, the clock. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.events import Event, Missing, Observed, Silent
from orchestrator.core.state import RunState, SlotState

__all__ = ["RosterEntry", "Swarm", "missing", "roster", "silent"]

_FRESH_S = 15.0  # a swarm's list older than this says nothing about anybody
_ENDING_S = 5.0  # a VM being ended that is no longer listed is gone after this


@dataclass(frozen=True, slots=True)
class Swarm:
    """The monitor's last word on who is in the DHT."""

    at_s: float  # of the newest list
    last_seen_s: Mapping[str, float]  # by VM


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One VM that may take part in the swarm."""

    vm: str
    slot: str
    generation: int
    maddr: str | None


def missing(state: RunState, seen: Sequence[Observed], now_s: float) -> list[Event]:
    """VMs the provider should list and does not, for longer than its list may lag."""
    listed = {o.vm for o in seen}
    out: list[Event] = []
    for slot in state.slots:
        if slot.vm and slot.vm not in listed and now_s - slot.since_s > state.spec.missing_deadline_s:
            out.append(Missing(now_s, slot.vm))
        if slot.ending and slot.ending not in listed and now_s - slot.since_s > _ENDING_S:
            out.append(Missing(now_s, slot.ending))
    if state.monitor == "ending" and state.monitor_vm() not in listed:
        out.append(Missing(now_s, state.monitor_vm()))
    return out


def silent(state: RunState, swarm: Swarm, now_s: float) -> list[Event]:
    """Training peers not seen in the DHT for the deadline, as long as somebody is looking."""
    if now_s - swarm.at_s > _FRESH_S:
        return []
    out: list[Event] = []
    for slot in state.slots:
        if slot.state is not SlotState.TRAINING or slot.phase == "leaving":
            continue
        for_s = now_s - max(slot.since_s, swarm.last_seen_s.get(slot.vm, 0.0))
        if for_s > state.spec.silent_deadline_s:
            out.append(Silent(now_s, slot.vm, for_s))
    return out


def roster(state: RunState, vms: Iterable[tuple[str, str, int]]) -> list[RosterEntry]:
    """All VMs (name, slot, generation) the run ever had; an address only for those that can be joined.

    A lost VM stays: its last record may still be read.
    """
    alive = {s.vm: s.maddr for s in state.slots if s.vm and s.maddr}
    return [RosterEntry(vm, slot, generation, alive.get(vm)) for vm, slot, generation in vms]
