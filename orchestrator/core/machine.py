"""The slot machine: `step(state, event)` gives the next state, the facts to journal, the instructions to do.

Level-triggered: an event only says what is known; a tick compares all that is known with what is wished and
repeats whatever is still to be done. So a lost, doubled or late event changes no end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.core.events import (
    EndRun,
    Event,
    Fact,
    Instruction,
    Missing,
    Observed,
    OfferRefused,
    Preempted,
    Requested,
    RequestVm,
    RunComplete,
    Silent,
    Spending,
    StartMonitor,
    StopWanted,
    TerminateVm,
    Tick,
)
from orchestrator.core.journal import facts
from orchestrator.core.monitor import monitor_lost, monitor_observed
from orchestrator.core.policy import Jitter, back_off_s, gives_up, next_place, over_budget
from orchestrator.core.state import LIVE, OVER, RunState, Slot, SlotState

__all__ = ["Step", "step"]

_READY = frozenset({"ready", "training", "leaving", "done"})
_RANK = {SlotState.PROVISIONING: 0, SlotState.BOOTING: 1, SlotState.JOINING: 2, SlotState.TRAINING: 3}
_PHASE_RANK = {
    "": 0,
    "starting": 1,
    "dht": 2,
    "ready": 3,
    "training": 4,
    "leaving": 5,
    "done": 6,
    "failed": 6,
}


@dataclass(frozen=True, slots=True)
class Step:
    """What one event came to: journal `facts` to the disk first, then do `instructions` in their order."""

    state: RunState
    facts: tuple[Fact, ...]
    instructions: tuple[Instruction, ...]


def step(state: RunState, event: Event, jitter: Jitter) -> Step:
    """One event. Pure: the same state, event and jitter give the same step."""
    instructions: tuple[Instruction, ...] = ()
    match event:
        case Tick():
            new = _tick(state, event.now_s)
            instructions = _wanted(new, event.now_s)
        case Observed(vm=vm) if vm in state.monitor_vms():
            new = monitor_observed(state, event)
            instructions = _stray(new, event)
        case Observed():
            new = _observed(state, event, jitter)
            instructions = _stray(new, event)
        case Requested(vm=vm):
            new = _on_vm(state, vm, lambda s: _confirm(s, event.now_s))
        case OfferRefused():
            new = _refused(state, event, jitter)
        case Preempted(cause=cause):
            new = _gone(state, event.vm, event.now_s, f"preempted: {cause}" if cause else "preempted", jitter)
        case Missing():
            new = _missing(state, event, jitter)
        case Silent():
            new = _silent(state, event, jitter)
        case Spending():
            spec = state.spec
            cause = over_budget(spec.budget_usd, event.spent_usd, event.burn_usd_per_h, spec.reserve_s)
            new = _stop(state, "budget", cause) if cause else state
        case StopWanted():
            new = _stop(state, event.status, event.cause)
        case RunComplete():
            new = _stop(state, "done", "all epochs measured")
    new = _settle(new, event.now_s)
    return Step(new, facts(state, new), instructions)


# Changes of one slot


def _on_vm(state: RunState, vm: str, change: Callable[[Slot], Slot]) -> RunState:
    """Change the slot whose VM this is, if any."""
    if not vm:
        return state
    return replace(state, slots=tuple(change(s) if s.vm == vm else s for s in state.slots))


def _confirm(slot: Slot, now_s: float) -> Slot:
    if slot.state is SlotState.PROVISIONING:
        return replace(
            slot,
            state=SlotState.BOOTING,
            confirmed=True,
            since_s=now_s,
            refusals=0,
            cause="the provider took it",
        )
    return replace(slot, confirmed=True)


def _lose(state: RunState, slot: Slot, now_s: float, cause: str, jitter: Jitter, *, gone: bool) -> Slot:
    """The slot's VM is lost: seek the next one or give up. Not `gone`: it has to be ended first."""
    ending = "" if gone else slot.vm
    if slot.state in OVER:  # a finished peer's VM has ended
        return replace(slot, vm="", ending=ending)
    cleared = replace(
        slot, vm="", ending=ending, confirmed=False, ambiguous=False, phase="", maddr="", address="",
        since_s=now_s, generation=slot.generation + 1, lost=slot.lost + 1, refusals=0, cause=cause,
    )  # fmt: skip
    if state.stop_status:
        return replace(cleared, state=SlotState.ENDED)
    spec = state.slot_spec(slot.name)
    why = gives_up(spec, cleared.lost, 0)
    if why:
        return replace(cleared, state=SlotState.FAILED, cause=f"{cause}; {why}")
    return replace(
        cleared,
        state=SlotState.WAITING,
        place=next_place(spec, slot.place, 0),
        retry_at_s=now_s + back_off_s(spec.policy, cleared.lost - 1, jitter),
    )


def _gone(state: RunState, vm: str, now_s: float, cause: str, jitter: Jitter) -> RunState:
    """The VM no longer exists."""
    slots = tuple(
        _lose(state, s, now_s, cause, jitter, gone=True)
        if vm and s.vm == vm
        else replace(s, ending="")
        if vm and s.ending == vm
        else s
        for s in state.slots
    )
    monitor = "gone" if vm == state.monitor_vm() else state.monitor
    return replace(state, slots=slots, monitor=monitor)


def _observed(state: RunState, event: Observed, jitter: Jitter) -> RunState:
    if event.hopeless and any(s.vm == event.vm for s in state.slots):
        state = _stop(state, "failed", event.cause or f"{event.vm} failed, as every other would")
    if event.state == "preempted":
        cause = f"preempted: {event.cause}" if event.cause else "preempted"
        return _gone(state, event.vm, event.now_s, cause, jitter)
    if event.phase == "done":
        state = _on_vm(state, event.vm, lambda s: _finish(s, event.now_s))
    if event.state == "terminated" or (event.state == "failed" and event.ended):
        return _gone(state, event.vm, event.now_s, event.cause or f"the VM {event.state}", jitter)
    if event.state == "failed":  # it may still hold a machine that is billed: end it before going on
        cause = event.cause or "the VM failed"
        return _on_vm(state, event.vm, lambda s: _lose(state, s, event.now_s, cause, jitter, gone=False))
    if event.phase == "failed":
        cause = event.cause or "the peer failed"
        return _on_vm(state, event.vm, lambda s: _lose(state, s, event.now_s, cause, jitter, gone=False))
    return _on_vm(state, event.vm, lambda s: _advance(s, event))


def _finish(slot: Slot, now_s: float) -> Slot:
    if slot.state in OVER:
        return slot
    return replace(
        slot, state=SlotState.DONE, phase="done", since_s=now_s, confirmed=True, cause="the peer finished"
    )


def _advance(slot: Slot, event: Observed) -> Slot:
    """Only forward: an old observation that comes late says nothing new."""
    if slot.state in OVER:
        return slot
    if event.state == "pending":
        wanted = SlotState.BOOTING
    elif event.phase in ("training", "leaving"):
        wanted = SlotState.TRAINING
    else:
        wanted = SlotState.JOINING
    phase = event.phase if _PHASE_RANK.get(event.phase, 0) > _PHASE_RANK.get(slot.phase, 0) else slot.phase
    slot = replace(
        slot, confirmed=True, refusals=0, phase=phase, maddr=event.maddr or slot.maddr,
        address=event.address or slot.address,
    )  # fmt: skip
    if _RANK[wanted] > _RANK[slot.state]:
        causes = {
            SlotState.BOOTING: "the provider took it",
            SlotState.JOINING: "its program runs",
            SlotState.TRAINING: "the peer trains",
        }
        slot = replace(slot, state=wanted, since_s=event.now_s, cause=causes[wanted])
    return slot


def _refused(state: RunState, event: OfferRefused, jitter: Jitter) -> RunState:
    if event.kind in ("credentials", "invalid"):
        if event.vm != state.monitor_vm() and not any(s.vm == event.vm for s in state.slots):
            return state
        return _stop(state, "failed", event.reason)

    def change(slot: Slot) -> Slot:
        if slot.state is not SlotState.PROVISIONING:
            return slot
        spec = state.slot_spec(slot.name)
        refusals = slot.refusals + 1
        retry_at_s = event.now_s + back_off_s(spec.policy, slot.refusals, jitter)
        if event.kind == "ambiguous":  # it may exist: only looking or asking for the same name is safe
            return replace(slot, ambiguous=True, retry_at_s=retry_at_s, refusals=refusals, cause=event.reason)
        why = gives_up(spec, slot.lost if spec.policy.replace != "never" else 0, refusals)
        if event.kind == "transient" and not why:
            return replace(slot, retry_at_s=retry_at_s, refusals=refusals, cause=event.reason)
        return replace(
            slot,
            state=SlotState.FAILED if why else SlotState.WAITING,
            vm="",
            ending=slot.vm if slot.ambiguous else "",
            ambiguous=False,
            generation=slot.generation + 1,
            place=next_place(spec, slot.place, refusals),
            refusals=refusals,
            since_s=event.now_s,
            retry_at_s=retry_at_s,
            cause=f"{event.reason}; {why}" if why else event.reason,
        )

    return _on_vm(state, event.vm, change)


def _missing(state: RunState, event: Missing, jitter: Jitter) -> RunState:
    def unasked(slot: Slot) -> bool:
        # Never seen and maybe never asked for: asking again (same name) settles it.
        return slot.vm == event.vm and slot.state is SlotState.PROVISIONING and not slot.confirmed

    if any(unasked(s) for s in state.slots) and not state.stop_status:
        return state
    if event.vm == state.monitor_vm() and not state.stop_status:
        return monitor_lost(state, event.now_s, "the provider no longer knows it")
    return _gone(state, event.vm, event.now_s, "the provider no longer knows the VM", jitter)


def _silent(state: RunState, event: Silent, jitter: Jitter) -> RunState:
    def change(slot: Slot) -> Slot:
        if slot.state is not SlotState.TRAINING:
            return slot
        cause = f"not seen in the DHT for {event.for_s:.0f} s"
        return _lose(state, slot, event.now_s, cause, jitter, gone=False)

    return _on_vm(state, event.vm, change)


# Changes of the run


def _stop(state: RunState, status: str, cause: str) -> RunState:
    """The first reason to stop is the one that counts."""
    return state if state.stop_status else replace(state, stop_status=status, stop_cause=cause)


def _tick(state: RunState, now_s: float) -> RunState:
    """What time alone changes: overdue VMs, intents, the end of the drain."""
    if state.ended:
        return state
    spec = state.spec
    if not state.stop_status:
        state = replace(state, slots=tuple(_overdue(state, s, now_s) for s in state.slots))
        done_s = [s.since_s for s in state.slots if s.state is SlotState.DONE]
        if done_s and state.finishing_s is None and now_s - min(done_s) > spec.straggler_s:
            state = replace(state, finishing_s=now_s)
        if state.finishing_s is not None and now_s - state.finishing_s >= spec.drain_s:
            state = _stop(state, "done", "all peers finished")
    if not state.stop_status and state.finishing_s is None:
        state = _intend(state, now_s)
    wanted = state.monitor == "absent" and now_s >= state.monitor_retry_at_s
    if wanted and state.maddrs() and not state.stop_status:
        state = replace(state, monitor="wanted")
    return state


def _overdue(state: RunState, slot: Slot, now_s: float) -> Slot:
    spec = state.spec
    waited_s = now_s - slot.since_s
    cause = ""
    if slot.state is SlotState.BOOTING and waited_s > spec.boot_deadline_s:
        cause = f"did not boot within {spec.boot_deadline_s:.0f} s"
    elif slot.state is SlotState.JOINING and slot.phase not in _READY and waited_s > spec.join_deadline_s:
        cause = f"did not join within {spec.join_deadline_s:.0f} s (its phase: {slot.phase or 'none'})"
    # Time-outs need no luck: the shortest back-off will do.
    return _lose(state, slot, now_s, cause, lambda: 0.0, gone=False) if cause else slot


def _intend(state: RunState, now_s: float) -> RunState:
    """Slots whose time has come get a VM's name. The first peer goes alone until its address is known."""
    if any(s.state is SlotState.DONE for s in state.slots):
        return state  # the run is nearly over: a new peer would only come too late
    alone = not state.maddrs()
    for slot in state.slots:
        if alone and any(s.state in LIVE for s in state.slots):
            break
        if slot.state is not SlotState.WAITING or slot.ending or now_s < slot.retry_at_s:
            continue
        vm = state.vm_name(slot)
        intended = replace(
            slot, state=SlotState.PROVISIONING, vm=vm, since_s=now_s, retry_at_s=now_s,
            confirmed=False, ambiguous=False, cause=slot.cause or "the slot has no VM",
        )  # fmt: skip
        state = replace(
            state,
            slots=tuple(intended if s.name == slot.name else s for s in state.slots),
            intents=state.intents | {vm},
        )
    return state


def _settle(state: RunState, now_s: float) -> RunState:
    """What follows from the slots together."""
    if state.ended:
        return state
    if not state.stop_status and all(s.state in OVER for s in state.slots):
        if any(s.state is SlotState.DONE for s in state.slots):
            if state.finishing_s is None:
                state = replace(state, finishing_s=now_s)
        else:
            cause = "; ".join(f"{s.name}: {s.cause}" for s in state.slots)
            status = "failed" if any(s.lost for s in state.slots) else "no_capacity"
            state = _stop(state, status, f"no peer is left: {cause}")
    if state.stop_status:
        state = replace(state, slots=tuple(_end_slot(s, state.stop_cause, now_s) for s in state.slots))
        if state.monitor in ("wanted", "up") and not any(s.ending for s in state.slots):
            state = replace(state, monitor="ending")
        if state.monitor in ("absent", "gone") and not any(s.vm or s.ending for s in state.slots):
            state = replace(state, ended=True)
    return state


def _end_slot(slot: Slot, cause: str, now_s: float) -> Slot:
    if slot.state not in OVER:
        slot = replace(slot, state=SlotState.ENDED, since_s=now_s, cause=cause)
    if slot.vm:
        slot = replace(slot, vm="", ending=slot.vm)
    return slot


# What is to be done


def _wanted(state: RunState, now_s: float) -> tuple[Instruction, ...]:
    """All that is still to be done, done before or not: doing it again does nothing."""
    out: list[Instruction] = []
    for slot in state.slots:
        if slot.ending:
            out.append(TerminateVm(slot.ending, slot.cause))
        elif slot.state is SlotState.PROVISIONING and not slot.confirmed and now_s >= slot.retry_at_s:
            peers = tuple(m for m in state.maddrs() if m != slot.maddr)
            out.append(RequestVm(slot.vm, slot.name, slot.generation, slot.place, peers))
    if state.monitor == "wanted" and not state.stop_status:
        out.append(StartMonitor(state.monitor_vm(), state.maddrs()))
    if state.monitor == "ending":
        out.append(TerminateVm(state.monitor_vm(), state.stop_cause))
    if state.ended:
        out.append(EndRun(state.stop_status, state.stop_cause))
    return tuple(out)


def _stray(state: RunState, event: Observed) -> tuple[Instruction, ...]:
    """A VM that lives and belongs to no slot any more, and is not the monitor's, is ended."""
    known = event.vm == state.monitor_vm() or any(event.vm in (s.vm, s.ending) for s in state.slots)
    if known or event.state not in ("pending", "running"):
        return ()
    return (TerminateVm(event.vm, "it belongs to no slot any more"),)
