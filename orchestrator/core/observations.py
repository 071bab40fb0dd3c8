"""What was seen, as events: the provider's list, the swarm's list, the clock. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.core.events import Event, Missing, Observed, Silent
from orchestrator.core.state import RunState, SlotState

FRESH_S = 15.0  # a swarm's list older than this says nothing about anybody
_ENDING_S = 5.0  # a VM being ended that is no longer listed is gone after this
_READS = 3  # lists in a row without a VM, before its absence counts


@dataclass(frozen=True, slots=True)
class Swarm:
    """The monitor's last word on who is in the DHT."""

    at_s: float  # of the newest list
    last_seen_s: Mapping[str, float]  # by VM
    since_s: float = 0.0  # who was seen before this nobody knows: no list was read, or none was written


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One VM that may take part in the swarm."""

    vm: str
    slot: str
    generation: int
    maddr: str | None


@dataclass(frozen=True, slots=True)
class Unlisted:
    """How often in a row a VM was not on the provider's list, and since when."""

    reads: int
    since_s: float


def missing(
    state: RunState,
    listed: Collection[str],
    now_s: float,
    before: Mapping[str, Unlisted],
    asked: Collection[str] = (),
) -> tuple[list[Event], dict[str, Unlisted]]:
    """VMs the provider should list and does not: after some lists in a row, and for longer than they may lag.

    Called once a list, with what it returned for the last one. `asked`: VMs whose request is under way, of which
    nothing can be said yet.
    """
    unlisted: dict[str, Unlisted] = {}
    out: list[Event] = []

    def look(vm: str, wait_s: float) -> None:
        if not vm or vm in listed or vm in asked:
            return
        known = before.get(vm, Unlisted(0, now_s))
        if known.reads + 1 >= _READS and now_s - known.since_s > wait_s:
            out.append(Missing(now_s, vm))  # what becomes of it then has as many lists again
        else:
            unlisted[vm] = Unlisted(known.reads + 1, known.since_s)

    for slot in state.slots:
        if slot.vm not in listed:
            look(slot.vm, _ENDING_S if state.stop_status else state.spec.missing_deadline_s)
        if slot.ending:
            look(slot.ending, _ENDING_S)
    if state.monitor == "up":
        look(state.monitor_vm(), state.spec.missing_deadline_s)
    elif state.monitor == "ending":
        look(state.monitor_vm(), 0.0)
    return out, unlisted


def news(
    state: RunState, seen: Iterable[Observed], before: Mapping[str, Observed], whole: bool
) -> list[Observed]:
    """What says more than the last list did; with `whole`, all: whatever was missed is then made good.

    VMs that live and belong to nobody are always told: ending them is tried again until they are gone.
    """
    held = {vm for s in state.slots for vm in (s.vm, s.ending) if vm} | {state.monitor_vm()}
    out: list[Observed] = []
    for event in seen:
        if (
            whole
            or before.get(event.vm) != event
            or (event.vm not in held and event.state in ("pending", "running"))
        ):
            out.append(event)
    return out


def corroborated(state: RunState, said: Iterable[Observed], hopeless: Collection[str]) -> list[Observed]:
    """`said`, where one VM's word that all others would fail as it did counts only when a second VM says it too.

    `hopeless`: all VMs that ever said so. One broken VM must not end a run of several slots.
    """
    if len(state.slots) < 2 or len(hopeless) > 1:
        return list(said)
    return [replace(event, hopeless=False) if event.hopeless else event for event in said]


def silent(state: RunState, swarm: Swarm, now_s: float) -> list[Event]:
    """Training peers not seen in the DHT for the deadline, as long as somebody is looking."""
    if now_s - swarm.at_s > FRESH_S:
        return []
    out: list[Event] = []
    seen, late_s = swarm.last_seen_s, now_s - state.spec.silent_deadline_s
    for slot in state.slots:
        if slot.state is not SlotState.TRAINING or seen.get(slot.vm, 0.0) >= late_s:
            continue
        for_s = now_s - max(slot.since_s, swarm.since_s, seen.get(slot.vm, 0.0))
        if for_s > state.spec.silent_deadline_s:
            out.append(Silent(now_s, slot.vm, for_s))
    return out


def roster(state: RunState, vms: Iterable[tuple[str, str, int]]) -> list[RosterEntry]:
    """All VMs (name, slot, generation) the run ever had; an address only for those that can be joined.

    A lost VM stays: its last record may still be read.
    """
    alive = {s.vm: s.maddr for s in state.slots if s.vm and s.maddr}
    return [RosterEntry(vm, slot, generation, alive.get(vm)) for vm, slot, generation in vms]
