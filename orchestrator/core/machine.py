"""The slot machine: events and the clock in; the next state, the facts to journal, the instructions to do out.

Level-triggered: an event only says what is known; a tick compares all that is known with what is wished and
repeats whatever is still to be done. So a lost, doubled or late event changes no end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.core import slots as slot_of
from orchestrator.core.bootstrap_peer import choose_seed
from orchestrator.core.events import (
    EndRun,
    Event,
    Fact,
    Instruction,
    Missing,
    Observed,
    OfferRefused,
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
from orchestrator.core.indexed_state import Work, work_on
from orchestrator.core.journal import facts
from orchestrator.core.limits import over_budget
from orchestrator.core.monitor import monitor_lost, monitor_observed
from orchestrator.core.placement import seek
from orchestrator.core.policy import Jitter
from orchestrator.core.state import LIVE, OVER, RunState, Slot, SlotState


@dataclass(frozen=True, slots=True)
class Step:
    """What events came to: journal `facts` to the disk first, then do `instructions` in their order."""

    state: RunState
    facts: tuple[Fact, ...]
    instructions: tuple[Instruction, ...]


def step(state: RunState, event: Event, jitter: Jitter) -> Step:
    """One event. Pure: the same state, event and jitter give the same step."""
    return _do(state, (event,), jitter)


def advance(state: RunState, events: Sequence[Event], now_s: float, jitter: Jitter) -> Step:
    """A batch of events, then a tick: the same as a `step` for each.

    Costs what the events change and what is due, not the number of slots, as long as each call is given the
    state of the last one.
    """
    return _do(state, (*events, Tick(now_s)), jitter)


def _do(state: RunState, events: Sequence[Event], jitter: Jitter) -> Step:
    work = work_on(state)
    work.whole = False  # whatever goes wrong below, nobody may go on with half a change
    told: list[Fact] = []
    wanted: list[Instruction] = []
    for event in events:
        before = work.run
        wanted += _happen(work, event, jitter)
        _settle(work, event.now_s)
        if isinstance(event, Tick):
            wanted += _wanted(work, event.now_s)
        changed, zones = work.touched()
        if changed or zones or work.run is not before:
            told += facts(before, work.run, changed, zones)
    return Step(work.freeze(), tuple(told), tuple(wanted))


def _happen(work: Work, event: Event, jitter: Jitter) -> Sequence[Instruction]:
    now_s = event.now_s
    match event:
        case Tick():
            _tick(work, now_s, jitter)
        case Observed(vm=vm):
            if vm in work.run.monitor_vms():
                work.run = monitor_observed(work.run, event)
            else:
                _observed(work, event, jitter)
            return _stray(work, event)
        case Requested(vm=vm):
            for i, _ in work.of_vm(vm):
                slot_of.confirm(work, i, now_s)
        case OfferRefused():
            _refused(work, event, jitter)
        case Missing():
            _missing(work, event, jitter)
        case Silent(vm=vm, for_s=for_s):
            for i, slot in work.of_vm(vm):
                if slot.state is SlotState.TRAINING:
                    cause = f"not seen in the DHT for {for_s:.0f} s"
                    slot_of.lose(work, i, now_s, cause, jitter, gone=False)
        case Spending():
            work.run = replace(
                work.run,
                spent_usd=event.spent_usd,
                burn_usd_per_h=event.burn_usd_per_h,
                egress_usd_per_h=event.egress_usd_per_h,
            )
            cause = over_budget(work.run, work.held_usd_per_h())
            if cause:
                _stop(work, "budget", cause)
        case StopWanted():
            _stop(work, event.status, event.cause)
        case RunComplete():
            _stop(work, "done", "all epochs measured")
    return ()


# What is said of a VM


def _gone(work: Work, vm: str, now_s: float, cause: str, jitter: Jitter, *, preempted: bool = False) -> None:
    """The VM no longer exists."""
    if not vm:
        return
    for i, _ in work.of_vm(vm):
        slot_of.lose(work, i, now_s, cause, jitter, gone=True, preempted=preempted)
    for i, slot in work.of_ending(vm):
        left = replace(slot, ending="", notice_at_s=None)
        work.set(i, slot_of.end_next(left) if work.run.stop_status else left)
    if vm == work.run.monitor_vm() and work.run.monitor != "gone":
        work.run = replace(work.run, monitor="gone")


def _observed(work: Work, event: Observed, jitter: Jitter) -> None:
    vm, now_s = event.vm, event.now_s
    if event.hopeless and any(work.of_vm(vm)):
        _stop(work, "failed", event.cause or f"{vm} failed, as every other would")
    if event.notice_at_s is not None:
        for i, _ in work.of_vm(vm):
            slot_of.note(work, i, event.notice_at_s, now_s, jitter)
    if event.state == "preempted":
        why = f"preempted: {event.cause}" if event.cause else "preempted"
        _gone(work, vm, now_s, why, jitter, preempted=True)
        return
    if event.phase == "done":
        for i, _ in (*work.of_vm(vm), *work.of_announced(vm)):
            slot_of.finish(work, i, now_s)
    if event.state == "terminated" and work.is_asking(vm):  # the request's own answer is on its way
        why = event.cause or "the VM ended before its request was answered"
        _refused(work, OfferRefused(now_s, vm, "no_capacity", why), jitter)
    if event.state == "terminated" or (event.state == "failed" and event.ended):
        _gone(work, vm, now_s, event.cause or f"the VM {event.state}", jitter)
        return
    if event.state == "failed" or event.phase == "failed":
        for i, _ in work.of_announced(vm):
            slot_of.leave(work, i, now_s)
    for i, _ in work.of_vm(vm):
        if event.state == "failed":  # it may still hold a machine that is billed: end it before going on
            slot_of.lose(work, i, now_s, event.cause or "the VM failed", jitter, gone=False)
        elif event.phase == "failed":
            slot_of.lose(work, i, now_s, event.cause or "the peer failed", jitter, gone=False)
        else:
            slot_of.see(work, i, event)


def _refused(work: Work, event: OfferRefused, jitter: Jitter) -> None:
    if event.kind in ("credentials", "invalid"):
        monitor = event.vm == work.run.monitor_vm()
        # With one cloud's credentials expired, what trains in the others is worth going on with.
        if monitor or (any(work.of_vm(event.vm)) and not work.able and not _others_come(work, event.vm)):
            _stop(work, "failed", event.reason)
            return
    for i, _ in work.of_vm(event.vm):
        slot_of.refuse(work, i, event, jitter)


def _others_come(work: Work, vm: str) -> bool:
    """With all requested at once: whether another slot has a VM, or may have one that was never refused."""

    def comes(slot: Slot) -> bool:
        asks = slot.state is SlotState.PROVISIONING
        return slot.state in LIVE and (not asks or not slot.refusals or slot.ambiguous)

    return not work.run.spec.first_alone and any(comes(s) for s in work.slots if s.vm != vm)


def _missing(work: Work, event: Missing, jitter: Jitter) -> None:
    if not work.run.stop_status:
        if work.is_asking(event.vm):
            return  # never seen and maybe never asked for: asking again (same name) settles it
        if event.vm == work.run.monitor_vm():
            work.run = monitor_lost(work.run, event.now_s, "the provider no longer knows it")
            return
    for i, _ in work.of_vm(
        event.vm
    ):  # it may be there all the same: it is ended before another has its place
        slot_of.lose(work, i, event.now_s, "the provider no longer knows the VM", jitter, gone=False)
        return
    _gone(work, event.vm, event.now_s, "", jitter)


# Changes of the run


def _stop(work: Work, status: str, cause: str) -> None:
    """The first reason to stop is the one that counts."""
    if not work.run.stop_status:
        work.run = replace(work.run, stop_status=status, stop_cause=cause)


def _tick(work: Work, now_s: float, jitter: Jitter) -> None:
    """What time alone changes: overdue VMs, intents, pauses, the end of the drain."""
    spec = work.run.spec
    if work.run.ended:
        return
    wall_s = now_s - work.run.launched_s
    if spec.max_wall_s is not None and wall_s >= spec.max_wall_s:
        _stop(work, "budget", f"the {spec.max_wall_s:.0f} s are over that the run may take (max_wall_time_s)")
    if not work.run.stop_status:
        for i in work.pop_due(now_s):
            cause = slot_of.overdue(work, i, now_s)
            if cause:  # time-outs need no luck: the shortest back-off will do
                slot_of.lose(work, i, now_s, cause, lambda: 0.0, gone=False)
            elif work.slots[i].state is not SlotState.WAITING:
                work.again(i)
        if work.run.finishing_s is None and now_s - work.first_done_s > spec.straggler_s:
            work.run = replace(work.run, finishing_s=now_s)
        if work.run.finishing_s is not None and now_s - work.run.finishing_s >= spec.drain_s:
            _stop(work, "done", "all peers finished")
    if not work.run.stop_status and work.run.finishing_s is None:
        broke = seek(work, now_s, jitter)
        if broke:
            _stop(work, "budget", broke)
    choose_seed(work, now_s)
    _pause(work, now_s)
    monitor_due = work.run.monitor == "absent" and now_s >= work.run.monitor_retry_at_s
    if monitor_due and work.joinable() and not work.run.stop_status:
        work.run = replace(work.run, monitor="wanted")


def _pause(work: Work, now_s: float) -> None:
    """Below `min_peers` the run waits, once it had as many; a peer that is done is not missed."""
    run = work.run
    over = bool(run.stop_status) or run.finishing_s is not None
    if over or work.done or work.able >= run.spec.min_peers:
        enough = run.enough or work.able >= run.spec.min_peers
        if run.paused_at_s is not None:
            paused_s = run.paused_s + max(0.0, now_s - run.paused_at_s)
            work.run = replace(run, enough=enough, paused_at_s=None, paused_s=paused_s)
        elif enough != run.enough:
            work.run = replace(run, enough=enough)
    elif run.enough and run.paused_at_s is None:
        work.run = replace(run, paused_at_s=now_s)


def _settle(work: Work, now_s: float) -> None:
    """What follows from the slots together."""
    if work.run.ended:
        return
    left = len(work.slots) - work.over
    if work.run.stop_status:
        pass
    elif work.done:
        if not left and work.run.finishing_s is None:
            work.run = replace(work.run, finishing_s=now_s)
    elif left < max(1, min(work.run.spec.min_peers, len(work.slots))):
        least = f"only {left} can ever train again, fewer than min_peers {work.run.spec.min_peers}"
        few = least if left else "no peer is left"
        cause = "; ".join(f"{s.name}: {s.cause}" for s in work.slots if s.state in OVER)
        status = "failed" if any(s.lost for s in work.slots) else "no_capacity"
        _stop(work, status, f"{few}: {cause}")
    if not work.run.stop_status:
        return
    if not work.all_ended:
        for i in range(len(work.slots)):
            slot_of.end(work, i, work.run.stop_cause, now_s)
        work.all_ended = True
    if work.run.monitor in ("wanted", "up") and not work.ending:
        work.run = replace(work.run, monitor="ending")
    if work.run.monitor in ("absent", "gone") and not work.held:
        work.run = replace(work.run, ended=True)


# What is to be done


def _wanted(work: Work, now_s: float) -> list[Instruction]:
    """All that is still to be done, done before or not: doing it again does nothing."""
    run = work.run
    out: list[Instruction] = []
    for i in sorted(work.ending | work.asking):
        slot = work.slots[i]
        if slot.ending and _is_due(run, slot, now_s):
            announced = f"it was announced to go, and {slot.vm} has its place"
            out.append(TerminateVm(slot.ending, announced if slot.vm and not run.stop_status else slot.cause))
        if slot.ending and slot.vm and run.stop_status:
            out.append(TerminateVm(slot.vm, slot.cause))
        if i in work.asking and now_s >= slot.retry_at_s:
            peers = work.addresses(besides=slot.maddr)
            out.append(RequestVm(slot.vm, slot.name, slot.generation, slot.place, peers))
    if run.monitor == "wanted" and not run.stop_status:
        out.append(StartMonitor(run.monitor_vm(), work.addresses()))
    if run.monitor == "ending":
        out.append(TerminateVm(run.monitor_vm(), run.stop_cause))
    if run.ended:
        out.append(EndRun(run.stop_status, run.stop_cause))
    return out


def _is_due(run: RunState, slot: Slot, now_s: float) -> bool:
    """Whether the VM it ends has to be told: one that was announced to go goes by itself, but not for ever."""
    announced_s = slot.notice_at_s
    goes = announced_s is not None and now_s < announced_s + run.spec.silent_deadline_s
    return bool(run.stop_status) or not goes


def _stray(work: Work, event: Observed) -> tuple[Instruction, ...]:
    """A VM that lives and belongs to no slot any more, and is not the monitor's, is ended."""
    known = event.vm == work.run.monitor_vm() or work.holds(event.vm)
    if known or event.state not in ("pending", "running"):
        return ()
    return (TerminateVm(event.vm, "it belongs to no slot any more"),)
