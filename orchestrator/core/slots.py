"""State changes of one slot: request accepted or refused, VM observed, lost or overdue, slot given up."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.events import Observed, OfferRefused
from orchestrator.core.indexed_state import READY, WAITS, WorkingState
from orchestrator.core.policy import (
    Jitter,
    after_loss_s,
    after_refusal_s,
    back_off_s,
    clock,
    failed_zone,
    gives_up,
    next_place,
    priced,
    refused_zone,
    times,
)
from orchestrator.core.state import OVER, Slot, SlotState

_RANK = {SlotState.PROVISIONING: 0, SlotState.BOOTING: 1, SlotState.JOINING: 2, SlotState.TRAINING: 3}
_BOOTS = {
    "setup": "its setup runs",
    "installing": "its software is installed",
}  # phases before the program starts
_PHASES = ("", *_BOOTS, WAITS, "starting", "dht", "ready", "training", "leaving", "done")
_PHASE_RANK = {**{phase: rank for rank, phase in enumerate(_PHASES)}, "failed": len(_PHASES) - 1}


def confirm(work: WorkingState, i: int, now_s: float) -> None:
    """The provider accepted the slot's request."""
    slot = work.slots[i]
    _reset_zone(work, i)
    if slot.state is not SlotState.PROVISIONING:
        work.set(i, replace(slot, confirmed=True))
        return
    work.set(
        i,
        replace(
            slot,
            state=SlotState.BOOTING,
            confirmed=True,
            since_s=now_s,
            refusals=0,
            cause="the provider took it",
        ),
    )


def lose(
    work: WorkingState,
    i: int,
    now_s: float,
    cause: str,
    jitter: Jitter,
    *,
    gone: bool,
    preempted: bool = False,
) -> None:
    """The slot's VM is lost: request the next one or give up. If not `gone`, the VM is terminated first."""
    slot = work.slots[i]
    if slot.state in OVER:  # the VM of a finished peer
        work.set(i, replace(slot, vm="") if gone else end_vm(slot))
        return
    left = replace(slot, preempted=slot.vm) if preempted else slot
    _replace(work, i, left if gone else _with_ending(left, slot.vm), now_s, cause, jitter)


def _with_ending(slot: Slot, ending: str, notice_at_s: float | None = None) -> Slot:
    """Set the slot's ending VM, which is its current one, with the time of its announced preemption if there is one.

    An earlier announced VM no longer belongs to the slot: it ends by itself, or is terminated as a stray.
    """
    trained = notice_at_s is not None and slot.state is SlotState.TRAINING
    return replace(slot, ending=ending, notice_at_s=notice_at_s, ending_trained=trained)


def _replace(work: WorkingState, i: int, slot: Slot, now_s: float, cause: str, jitter: Jitter) -> None:
    """Schedule a replacement for the slot's VM, or give up."""
    spec = work.spec(i)
    preempted = bool(slot.vm) and slot.preempted == slot.vm
    if preempted and spec.policy.replace == "any_place_up":
        work.set_zone(failed_zone(work.zone(spec.places[slot.place]), now_s))
    cleared = replace(
        slot, vm="", confirmed=False, ambiguous=False, phase="", maddr="", address="",
        since_s=now_s, generation=slot.generation + 1, lost=slot.lost + 1, refusals=0, cause=cause,
    )  # fmt: skip
    why = gives_up(spec, cleared.lost, 0)
    if work.run.stop_status:
        work.set(i, replace(cleared, state=SlotState.ENDED))
    elif why:
        work.set(i, replace(cleared, state=SlotState.FAILED, cause=f"{cause}; {why}"))
    else:
        place = next_place(spec, slot.place, 0, work.rank(now_s))
        retry_at_s = now_s + after_loss_s(spec.policy, cleared.lost, jitter, preempted=preempted)
        to = f"next at {clock(retry_at_s)}: {priced(spec.places[place])}"
        work.set(
            i,
            replace(
                cleared,
                state=SlotState.WAITING,
                place=place,
                retry_at_s=retry_at_s,
                cause=f"{cause}; {to}",
            ),
        )


def finish(work: WorkingState, i: int, now_s: float, cause: str = "the peer finished") -> None:
    """The slot's peer finished training."""
    slot = work.slots[i]
    if slot.state not in OVER:
        work.set(
            i,
            replace(slot, state=SlotState.DONE, phase="done", since_s=now_s, confirmed=True, cause=cause),
        )


def observe(work: WorkingState, i: int, event: Observed) -> None:
    """Apply an observation of the slot's live VM.

    States and phases only advance, so a late observation is ignored.
    """
    slot = work.slots[i]
    if slot.state in OVER:
        return
    if event.state == "pending":
        reached = SlotState.BOOTING
    elif event.phase in ("training", "leaving"):
        reached = SlotState.TRAINING
    else:
        reached = SlotState.JOINING
    _reset_zone(work, i)
    phase = event.phase if _PHASE_RANK.get(event.phase, 0) > _PHASE_RANK.get(slot.phase, 0) else slot.phase
    same_node = event.maddr in ("", slot.maddr) and event.address in ("", slot.address)
    if (
        same_node
        and phase == slot.phase
        and slot.confirmed
        and not slot.refusals
        and _RANK[reached] <= _RANK[slot.state]
    ):
        return  # nothing new: the common case
    waited, booted = slot.phase == WAITS, phase in _BOOTS and phase != slot.phase
    slot = replace(
        slot, confirmed=True, refusals=0, phase=phase, maddr=event.maddr or slot.maddr,
        address=event.address or slot.address,
    )  # fmt: skip
    if _RANK[reached] > _RANK[slot.state]:
        causes = {
            SlotState.BOOTING: "the provider took it",
            SlotState.JOINING: "it is ready to be told whom to join"
            if phase == WAITS
            else "its program runs",
            SlotState.TRAINING: "the peer trains",
        }
        slot = replace(slot, state=reached, since_s=event.now_s, cause=causes[reached])
    elif booted and slot.state is SlotState.BOOTING:  # each boot step has its own deadline
        slot = replace(slot, since_s=event.now_s, cause=_BOOTS[phase])
    elif waited and phase != WAITS:  # its own join deadline starts now
        slot = replace(slot, since_s=event.now_s, cause="its program runs")
    work.set(i, slot)


def handle_notice(work: WorkingState, i: int, notice_at_s: float, now_s: float, jitter: Jitter) -> None:
    """The VM's preemption is announced for `notice_at_s`, and its peer leaves now: request a replacement at once."""
    slot = work.slots[i]
    if slot.state not in OVER:
        cause = f"preempted, as announced for {clock(notice_at_s)}"
        left = replace(_with_ending(slot, slot.vm, notice_at_s), preempted=slot.vm)
        _replace(work, i, left, now_s, cause, jitter)


def expire_notice(work: WorkingState, i: int, now_s: float) -> None:
    """The program on the announced VM has ended: terminate the VM now."""
    slot = work.slots[i]
    assert slot.notice_at_s is not None
    over_s = now_s - work.run.spec.silent_deadline_s  # a notice time this old is due (see `machine._is_due`)
    work.set(i, replace(slot, notice_at_s=min(slot.notice_at_s, over_s), ending_trained=False))


def refuse(work: WorkingState, i: int, event: OfferRefused, jitter: Jitter) -> None:
    """The provider refused the slot's request, or gave no answer to it."""
    slot = work.slots[i]
    if slot.state is not SlotState.PROVISIONING:
        return
    spec = work.spec(i)
    refusals = slot.refusals + 1
    if event.kind in ("transient", "ambiguous"):
        retry_at_s = event.now_s + back_off_s(spec.policy, slot.refusals, jitter)
    else:
        retry_at_s = event.now_s + after_refusal_s(spec, refusals, jitter)
    unanswered_s = event.now_s - slot.since_s
    if event.kind == "ambiguous" and unanswered_s <= work.run.spec.boot_deadline_s:
        # The VM may exist: only listing VMs or repeating the request for the same name is safe.
        cause = f"{event.reason}; looking for it, and asking for the same VM again at {clock(retry_at_s)}"
        work.set(i, replace(slot, ambiguous=True, retry_at_s=retry_at_s, refusals=refusals, cause=cause))
        return
    # While other slots have VMs, or may get some, a slot without capacity costs nothing and may find some later.
    lost = slot.lost if spec.policy.replace != "never" else 0
    why = "" if work.taken or _others_may_find(work, i) else gives_up(spec, lost, refusals)
    if event.kind == "transient" and not why:
        cause = f"{event.reason}; asking again at {clock(retry_at_s)}"
        # This request created nothing, but an earlier unanswered one may have created the VM.
        since_s = slot.since_s if slot.ambiguous else event.now_s
        work.set(i, replace(slot, since_s=since_s, retry_at_s=retry_at_s, refusals=refusals, cause=cause))
        return
    refused_by = spec.places[slot.place]
    outcome = f"{refused_by.zone} refused {times(refusals)}" if refusals > 1 else f"{refused_by.zone} refused"
    may_exist = slot.ambiguous or event.kind == "ambiguous"
    if event.kind == "ambiguous":
        outcome = (
            f"no answer from {refused_by.zone} for {unanswered_s:.0f} s, {slot.vm} is ended in case it exists"
        )
    if event.kind in ("no_capacity", "quota"):
        zone = refused_zone(work.run.spec, work.zone(refused_by), event.now_s)
        work.set_zone(zone)
        outcome = f"{refused_by.zone} refused {times(zone.refusals)}" if zone.refusals > 1 else outcome
        if zone.closed_until_s > event.now_s:
            outcome += f", next try {clock(zone.closed_until_s)}"
    place = next_place(spec, slot.place, refusals, work.rank(event.now_s))
    if why:
        outcome += f"; {why}"
    elif place != slot.place:
        outcome += f"; trying {priced(spec.places[place])}"
    else:
        outcome += f"; trying it again at {clock(retry_at_s)}"
    work.set(
        i,
        replace(
            _with_ending(slot, slot.vm) if may_exist else slot,
            state=SlotState.FAILED if why else SlotState.WAITING,
            vm="",
            ambiguous=False,
            generation=slot.generation + 1,
            place=place,
            refusals=refusals,
            since_s=event.now_s,
            retry_at_s=retry_at_s,
            cause=f"{event.reason}; {outcome}",
        ),
    )


def _others_may_find(work: WorkingState, i: int) -> bool:
    """Whether another slot's request is in progress, in a run that requests all VMs at once.

    Slots that were refused too often do not count: slots that retry in turn would wait for each other
    forever.
    """
    if work.run.spec.first_alone:
        return False
    return any(j != i and not gives_up(work.spec(j), 0, work.slots[j].refusals) for j in work.unconfirmed)


def overdue(work: WorkingState, i: int, now_s: float) -> str:
    """Which deadline the slot's VM has exceeded, or ""."""
    spec, slot = work.run.spec, work.slots[i]
    waited_s = now_s - slot.since_s
    boot_s = spec.boot_within_s(slot.phase)
    if slot.state is SlotState.BOOTING and waited_s > boot_s:
        step = f" (its phase: {slot.phase})" if slot.phase else ""
        return f"did not boot within {boot_s:.0f} s{step}"
    join_s = work.join_within_s(slot)
    if slot.state is SlotState.JOINING and slot.phase not in READY and waited_s > join_s:
        return f"did not join within {join_s:.0f} s (its phase: {slot.phase or 'none'})"
    if slot.state is SlotState.JOINING and waited_s > spec.start_deadline_s:
        return f"did not train within {spec.start_deadline_s:.0f} s (its phase: {slot.phase})"
    return ""


def end(work: WorkingState, i: int, cause: str, now_s: float) -> None:
    """The run has stopped: end the slot and terminate its VM."""
    slot = work.slots[i]
    if slot.state not in OVER:
        slot = replace(slot, state=SlotState.ENDED, since_s=now_s, cause=cause)
    work.set(i, end_vm(slot))


def end_vm(slot: Slot) -> Slot:
    """Terminate the VM of a slot that is over, after an announced earlier VM is gone."""
    if slot.ending and slot.vm:
        return slot
    return replace(slot, vm="", ending=slot.vm or slot.ending, notice_at_s=None)


def _reset_zone(work: WorkingState, i: int) -> None:
    """Reset the circuit breaker of a zone that accepted a request."""
    slot = work.slots[i]
    if slot.state is SlotState.PROVISIONING and not slot.confirmed:
        zone = work.zone(work.spec(i).places[slot.place])
        work.set_zone(replace(zone, refusals=0, closed_until_s=0.0, probe=""))
