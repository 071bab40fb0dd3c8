"""The state machine of the slots: from events and time to the next state, journal rows and instructions.

It is level-triggered: an event only updates what is known. A tick compares the observed state with the
desired one and repeats every instruction that is still due. So lost, duplicated or late events do not change
the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.core import slots as slot_of
from orchestrator.core.bootstrap_peer import choose_seed
from orchestrator.core.events import (
    Checkpoint,
    EndRun,
    Event,
    Fact,
    Finished,
    Instruction,
    Missing,
    Observed,
    OfferRefused,
    Requested,
    RunComplete,
    Silent,
    Spending,
    StartMonitor,
    StopWanted,
    TerminateVm,
    Tick,
    Trained,
)
from orchestrator.core.indexed_state import WorkingState, working_state
from orchestrator.core.journal import RUN_ENDED, checkpoint_fact, checkpoint_noted, facts, swarm_lost
from orchestrator.core.limits import over_budget
from orchestrator.core.monitor import monitor_lost, monitor_observed
from orchestrator.core.placement import place_waiting_slots
from orchestrator.core.policy import Jitter
from orchestrator.core.state import LIVE, OVER, RunState, Slot, SlotState
from orchestrator.core.until import last_epoch, reached


@dataclass(frozen=True, slots=True)
class Step:
    """The result of events. Write `facts` to the journal first, then execute `instructions` in order."""

    state: RunState
    facts: tuple[Fact, ...]
    instructions: tuple[Instruction, ...]


def step(state: RunState, event: Event, jitter: Jitter) -> Step:
    """Process one event. Pure: the same state, event and jitter give the same step."""
    return _do(state, (event,), jitter)


def advance(state: RunState, events: Sequence[Event], now_s: float, jitter: Jitter) -> Step:
    """Process a batch of events and a tick; equivalent to one `step` for each.

    The cost grows with the changed and due slots, not with the number of slots, provided that each call gets
    the state that the last call returned.
    """
    return _do(state, (*events, Tick(now_s)), jitter)


def _do(state: RunState, events: Sequence[Event], jitter: Jitter) -> Step:
    work = working_state(state)
    work.consistent = False  # if anything below raises, these indexes are not reused
    rows: list[Fact] = []
    instructions: list[Instruction] = []
    for event in events:
        before, trained = work.run, work.training
        instructions += _apply(work, event, jitter)
        # Peers of a run that stops or finishes end on purpose. A peer that is announced to go may still finish.
        lost = bool(trained) and not work.training and not work.done and not work.run.stop_status
        _settle(work, event.now_s)
        if isinstance(event, Tick):
            instructions += _due_instructions(work, event.now_s)
        changed, zones = work.touched()
        new: Sequence[Fact] = ()
        if changed or zones or work.run is not before:
            new = facts(before, work.run, changed, zones)
        last = [fact for fact in new if fact.kind == RUN_ENDED]
        rows += [fact for fact in new if fact.kind != RUN_ENDED]
        if isinstance(event, Checkpoint) and work.run.checkpoint_notes != before.checkpoint_notes:
            rows.append(checkpoint_fact(work.run, event))
        if lost:
            rows.append(swarm_lost(work.run, work.able))
        rows += last
    return Step(work.freeze(), tuple(rows), tuple(instructions))


def _apply(work: WorkingState, event: Event, jitter: Jitter) -> Sequence[Instruction]:
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
        case Checkpoint():
            work.run = checkpoint_noted(work.run, event)
        case Finished(slot=name):
            _finished(work, event, name)
        case Trained():
            _trained(work, event)
        case StopWanted():
            _stop(work, event.status, event.cause)
        case RunComplete():
            _stop(work, "done", "all epochs measured")
    return ()


# Observations of a VM


def _gone(
    work: WorkingState, vm: str, now_s: float, cause: str, jitter: Jitter, *, preempted: bool = False
) -> None:
    """The VM no longer exists."""
    if not vm:
        return
    for i, _ in work.of_vm(vm):
        slot_of.lose(work, i, now_s, cause, jitter, gone=True, preempted=preempted)
    for i, slot in work.of_ending(vm):
        left = replace(slot, ending="", notice_at_s=None)
        work.set(i, slot_of.end_vm(left) if work.run.stop_status else left)
    if vm == work.run.monitor_vm() and work.run.monitor != "gone":
        work.run = replace(work.run, monitor="gone")


def _observed(work: WorkingState, event: Observed, jitter: Jitter) -> None:
    vm, now_s = event.vm, event.now_s
    if event.unrecoverable and any(work.of_vm(vm)):
        _stop(work, "failed", event.cause or f"{vm} failed, as every other would")
    # First: a peer that finished before its VM was taken back has lost nothing, though both may be in one list of VMs.
    if event.phase == "done":
        for i, _ in (*work.of_vm(vm), *work.of_announced(vm)):
            slot_of.finish(work, i, now_s)
    if event.notice_at_s is not None:
        for i, _ in work.of_vm(vm):
            slot_of.handle_notice(work, i, event.notice_at_s, now_s, jitter)
    if event.state == "preempted":
        why = f"preempted: {event.cause}" if event.cause else "preempted"
        _gone(work, vm, now_s, why, jitter, preempted=True)
        return
    if event.state == "terminated" and work.is_unconfirmed(vm):  # the answer to the request is still to come
        why = event.cause or "the VM ended before its request was answered"
        _refused(work, OfferRefused(now_s, vm, "no_capacity", why), jitter)
    if event.state == "terminated" or (event.state == "failed" and event.ended):
        _gone(work, vm, now_s, event.cause or f"the VM {event.state}", jitter)
        return
    if event.state == "failed" or event.phase == "failed":
        for i, _ in work.of_announced(vm):
            slot_of.expire_notice(work, i, now_s)
    for i, _ in work.of_vm(vm):
        if event.state == "failed":  # its machine may still be billed: terminate it first
            slot_of.lose(work, i, now_s, event.cause or "the VM failed", jitter, gone=False)
        elif event.phase == "failed":
            slot_of.lose(work, i, now_s, event.cause or "the peer failed", jitter, gone=False)
        else:
            slot_of.observe(work, i, event)


def _finished(work: WorkingState, event: Finished, name: str) -> None:
    cause = f"{event.vm} trained the last epoch before it was lost; a replacement would have nothing to do"
    for i, slot in enumerate(work.slots):
        if slot.name == name and (slot.vm == event.vm or slot.state is SlotState.WAITING):
            slot_of.finish(work, i, event.now_s, cause)


def _refused(work: WorkingState, event: OfferRefused, jitter: Jitter) -> None:
    if event.kind in ("credentials", "invalid"):
        monitor = event.vm == work.run.monitor_vm()
        # If the credentials of one cloud expired, the peers in other clouds should keep training.
        if monitor or (any(work.of_vm(event.vm)) and not work.able and not _others_pending(work, event.vm)):
            _stop(work, "failed", event.reason)
            return
    for i, _ in work.of_vm(event.vm):
        slot_of.refuse(work, i, event, jitter)


def _others_pending(work: WorkingState, vm: str) -> bool:
    """Whether another slot has a VM or an unrefused request, in a run that requests all VMs at once."""

    def pending(slot: Slot) -> bool:
        requested = slot.state is SlotState.PROVISIONING
        return slot.state in LIVE and (not requested or not slot.refusals or slot.ambiguous)

    return not work.run.spec.first_alone and any(pending(s) for s in work.slots if s.vm != vm)


def _missing(work: WorkingState, event: Missing, jitter: Jitter) -> None:
    if not work.run.stop_status:
        if work.is_unconfirmed(event.vm):
            return  # it may not exist yet: repeating the request (same name) settles that
        if event.vm == work.run.monitor_vm():
            work.run = monitor_lost(work.run, event.now_s, "the provider no longer knows it")
            return
    # It may still exist, so it is terminated before it is replaced.
    for i, _ in work.of_vm(event.vm):
        slot_of.lose(work, i, event.now_s, "the provider no longer knows the VM", jitter, gone=False)
        return
    _gone(work, event.vm, event.now_s, "", jitter)


# Changes to the run


def _stop(work: WorkingState, status: str, cause: str) -> None:
    """Stop the run. Only the first reason is kept."""
    if not work.run.stop_status:
        work.run = replace(work.run, stop_status=status, stop_cause=cause)


def _trained(work: WorkingState, event: Trained) -> None:
    """Order the last epoch once a goal is reached. The first goal counts."""
    run = work.run
    if run.spec.until is None or run.last_epoch is not None or run.stop_status or run.finishing_s is not None:
        return
    goal = reached(run.spec.until, event)
    if goal is not None:
        work.run = replace(run, last_epoch=last_epoch(event, run.spec.epochs), ended_by=goal)


def _tick(work: WorkingState, now_s: float, jitter: Jitter) -> None:
    """Apply what depends on time alone: overdue VMs, intents, pauses, the end of the drain."""
    spec = work.run.spec
    if work.run.ended:
        return
    wall_s = now_s - work.run.launched_s
    if spec.max_wall_s is not None and wall_s >= spec.max_wall_s:
        _stop(work, "budget", f"the {spec.max_wall_s:.0f} s are over that the run may take (max_wall_time_s)")
    if not work.run.stop_status:
        for i in work.pop_due(now_s):
            cause = slot_of.overdue(work, i, now_s)
            if cause:  # no jitter: the shortest back-off is enough after a timeout
                slot_of.lose(work, i, now_s, cause, lambda: 0.0, gone=False)
            elif work.slots[i].state is not SlotState.WAITING:
                work.reschedule(i)
        if work.run.finishing_s is None and now_s - work.first_done_s > spec.straggler_s:
            work.run = replace(work.run, finishing_s=now_s)
        if work.run.finishing_s is not None and now_s - work.run.finishing_s >= spec.drain_s:
            _stop(work, "done", "all peers finished")
    if not work.run.stop_status and work.run.finishing_s is None:
        shortfall = place_waiting_slots(work, now_s, jitter)
        if shortfall:
            _stop(work, "budget", shortfall)
    choose_seed(work, now_s)
    _pause(work, now_s)
    monitor_due = work.run.monitor == "absent" and now_s >= work.run.monitor_retry_at_s
    if monitor_due and work.joinable() and not work.run.stop_status:
        work.run = replace(work.run, monitor="wanted")


def _pause(work: WorkingState, now_s: float) -> None:
    """Pause below `min_peers`, once that many peers could train. No pause once a peer is done."""
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


def _settle(work: WorkingState, now_s: float) -> None:
    """Apply what follows from all slots together: the drain, a stop, the end of the run."""
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


# Instructions


def _due_instructions(work: WorkingState, now_s: float) -> list[Instruction]:
    """Every instruction that is still due.

    Instructions are idempotent, so they are repeated until they take effect.
    """
    run = work.run
    out: list[Instruction] = []
    joinable = work.addresses()
    for i in sorted(work.ending | work.unconfirmed):
        slot = work.slots[i]
        if slot.ending and _is_due(run, slot, now_s):
            announced = f"it was announced to go, and {slot.vm} has its place"
            out.append(TerminateVm(slot.ending, announced if slot.vm and not run.stop_status else slot.cause))
        if slot.ending and slot.vm and run.stop_status:
            out.append(TerminateVm(slot.vm, slot.cause))
        if i in work.unconfirmed and now_s >= slot.retry_at_s:
            out.append(work.request(i, work.addresses(exclude=slot.maddr) if slot.maddr else joinable))
    if run.monitor == "wanted" and not run.stop_status:
        out.append(StartMonitor(run.monitor_vm(), joinable))
    if run.monitor == "ending":
        out.append(TerminateVm(run.monitor_vm(), run.stop_cause))
    if run.ended:
        out.append(EndRun(run.stop_status, run.stop_cause))
    return out


def _is_due(run: RunState, slot: Slot, now_s: float) -> bool:
    """Whether the slot's ending VM must be terminated.

    A VM with an announced preemption gets time to end by itself.
    """
    announced_s = slot.notice_at_s
    goes = announced_s is not None and now_s < announced_s + run.spec.silent_deadline_s
    return bool(run.stop_status) or not goes


def _stray(work: WorkingState, event: Observed) -> tuple[Instruction, ...]:
    """Terminate a live VM that belongs neither to a slot nor to the monitor."""
    known = event.vm == work.run.monitor_vm() or work.holds(event.vm)
    if known or event.state not in ("pending", "running"):
        return ()
    return (TerminateVm(event.vm, "it belongs to no slot any more"),)
