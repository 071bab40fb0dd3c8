"""Events from observations: the provider's list of VMs and the DHT's list of peers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.core.events import Event, Missing, Observed, Silent
from orchestrator.core.indexed_state import held_vms
from orchestrator.core.state import RunState, SlotState

FRESH_S = 15.0  # a DHT list older than this proves nothing about any peer
_ENDING_S = 5.0  # a VM being terminated is gone if unlisted for this long
_READS = 3  # consecutive lists without a VM before its absence counts


@dataclass(frozen=True, slots=True)
class Swarm:
    """The monitor's last list of the peers in the DHT."""

    at_s: float  # of the newest list
    last_seen_s: Mapping[str, float]  # by VM
    since_s: float = 0.0  # start of the current series of lists; before it, none was read or written


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A VM that may take part in the swarm."""

    vm: str
    slot: str
    generation: int
    maddr: str | None


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Consecutive provider lists without a VM, and the time of the first."""

    reads: int
    since_s: float


def missing(
    state: RunState,
    listed: Collection[str],
    now_s: float,
    before: Mapping[str, Unlisted],
    in_progress: Collection[str] = (),
) -> tuple[list[Event], dict[str, Unlisted]]:
    """VMs missing from several consecutive provider lists, for longer than these lists may lag.

    Call this once per list, with the second result of the previous call as `before`. `in_progress`: VMs whose
    request is in progress, which are skipped.
    """
    unlisted: dict[str, Unlisted] = {}
    out: list[Event] = []

    def look(vm: str, wait_s: float) -> None:
        if vm in listed or vm in in_progress:
            return
        known = before.get(vm, Unlisted(0, now_s))
        if known.reads + 1 >= _READS and now_s - known.since_s > wait_s:
            out.append(Missing(now_s, vm))  # its state after that gets a fresh count of lists
        else:
            unlisted[vm] = Unlisted(known.reads + 1, known.since_s)

    for slot in state.slots:
        if slot.vm and slot.vm not in listed:
            look(slot.vm, _ENDING_S if state.stop_status else state.spec.missing_deadline_s)
        if slot.ending:
            look(slot.ending, _ENDING_S)
    if state.monitor == "up":
        look(state.monitor_vm(), state.spec.missing_deadline_s)
    elif state.monitor == "ending":
        look(state.monitor_vm(), 0.0)
    return out, unlisted


def changed_observations(
    state: RunState, seen: Iterable[Observed], before: Mapping[str, Observed], whole: bool
) -> list[Observed]:
    """Observations that differ from the last list; with `whole`, all, to repair any missed event.

    Live VMs that belong to no slot are always included, so that terminating them is retried until they are
    gone.
    """
    held, monitor = held_vms(state), state.monitor_vm()

    def is_stray(event: Observed) -> bool:
        return event.vm != monitor and event.state in ("pending", "running")

    return [
        event
        for event in seen
        if whole
        or ((known := before.get(event.vm)) is not event and known != event)
        or (event.vm not in held and is_stray(event))
    ]


def corroborated(
    state: RunState, observed: Iterable[Observed], unrecoverable: Collection[str]
) -> list[Observed]:
    """Clear `unrecoverable` unless at least two VMs have reported it (or the run has one slot).

    `unrecoverable`: all VMs that ever reported it. One broken VM must not end a run of several slots.
    """
    if len(state.slots) < 2 or len(unrecoverable) > 1:
        return list(observed)
    return [replace(event, unrecoverable=False) if event.unrecoverable else event for event in observed]


def silent(state: RunState, swarm: Swarm, now_s: float) -> list[Event]:
    """Training peers not seen in the DHT for the deadline; none while the monitor's list is stale."""
    if now_s - swarm.at_s > FRESH_S:
        return []
    out: list[Event] = []
    seen, late_s = swarm.last_seen_s, now_s - state.spec.silent_deadline_s
    for slot in [slot for slot in state.slots if seen.get(slot.vm, 0.0) < late_s]:
        if slot.state is not SlotState.TRAINING:
            continue
        for_s = now_s - max(slot.since_s, swarm.since_s, seen.get(slot.vm, 0.0))
        if for_s > state.spec.silent_deadline_s:
            out.append(Silent(now_s, slot.vm, for_s))
    return out


def roster(state: RunState, vms: Iterable[tuple[str, str, int]]) -> list[RosterEntry]:
    """Roster entries for all VMs (name, slot, generation) the run ever had; only joinable ones have an address.

    Lost VMs stay in the roster, because their last record may still be read.
    """
    alive = {s.vm: s.maddr for s in state.slots if s.vm and s.maddr}
    return [RosterEntry(vm, slot, generation, alive.get(vm)) for vm, slot, generation in vms]
