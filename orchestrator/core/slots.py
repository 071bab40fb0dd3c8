"""What becomes of one slot: taken, seen, refused, lost, given up. Pure: the slot as it is in, the next one out."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.events import Observed, OfferRefused
from orchestrator.core.indexed_state import READY, WAITS, Work
from orchestrator.core.policy import (
    Jitter,
    back_off_s,
    clock,
    gives_up,
    next_place,
    priced,
    refused_zone,
    times,
)
from orchestrator.core.state import OVER, Slot, SlotState

_RANK = {SlotState.PROVISIONING: 0, SlotState.BOOTING: 1, SlotState.JOINING: 2, SlotState.TRAINING: 3}
_BOOTS = {"setup": "its setup runs", "installing": "its software is installed"}  # phases before a program
_PHASES = ("", *_BOOTS, WAITS, "starting", "dht", "ready", "training", "leaving", "done")
_PHASE_RANK = {**{phase: rank for rank, phase in enumerate(_PHASES)}, "failed": len(_PHASES) - 1}


def confirm(work: Work, i: int, now_s: float) -> None:
    """The provider took the slot's request."""
    slot = work.slots[i]
    _took(work, i)
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
    work: Work, i: int, now_s: float, cause: str, jitter: Jitter, *, gone: bool, preempted: bool = False
) -> None:
    """The slot's VM is lost: seek the next one or give up. Not `gone`: it has to be ended first."""
    slot = work.slots[i]
    if slot.state in OVER:  # a finished peer's VM has ended
        work.set(i, replace(slot, vm="") if gone else end_next(slot))
        return
    left = replace(slot, preempted=slot.vm) if preempted else slot
    _replace(work, i, left if gone else _only(left, slot.vm), now_s, cause, jitter)


def _only(slot: Slot, ending: str, notice_at_s: float | None = None) -> Slot:
    """This VM of the slot is being ended, or goes by itself when announced. An earlier one that was announced
    belongs to no slot from here: it goes, or is ended as a stray."""
    return replace(slot, ending=ending, notice_at_s=notice_at_s)


def _replace(work: Work, i: int, slot: Slot, now_s: float, cause: str, jitter: Jitter) -> None:
    """Seek a VM in the place of the slot's own, or give up."""
    spec = work.spec(i)
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
        place = next_place(spec, slot.place, 0)
        retry_at_s = now_s + back_off_s(spec.policy, cleared.lost - 1, jitter)
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


def finish(work: Work, i: int, now_s: float) -> None:
    """Its peer finished by itself."""
    slot = work.slots[i]
    if slot.state not in OVER:
        cause = "the peer finished"
        work.set(
            i,
            replace(slot, state=SlotState.DONE, phase="done", since_s=now_s, confirmed=True, cause=cause),
        )


def see(work: Work, i: int, event: Observed) -> None:
    """Its VM lives. Only forward: an old observation that comes late says nothing new."""
    slot = work.slots[i]
    if slot.state in OVER:
        return
    if event.state == "pending":
        wanted = SlotState.BOOTING
    elif event.phase in ("training", "leaving"):
        wanted = SlotState.TRAINING
    else:
        wanted = SlotState.JOINING
    _took(work, i)
    phase = event.phase if _PHASE_RANK.get(event.phase, 0) > _PHASE_RANK.get(slot.phase, 0) else slot.phase
    same_node = event.maddr in ("", slot.maddr) and event.address in ("", slot.address)
    if (
        same_node
        and phase == slot.phase
        and slot.confirmed
        and not slot.refusals
        and _RANK[wanted] <= _RANK[slot.state]
    ):
        return  # nothing new, as of most VMs in most lists
    waited, booted = slot.phase == WAITS, phase in _BOOTS and phase != slot.phase
    slot = replace(
        slot, confirmed=True, refusals=0, phase=phase, maddr=event.maddr or slot.maddr,
        address=event.address or slot.address,
    )  # fmt: skip
    if _RANK[wanted] > _RANK[slot.state]:
        causes = {
            SlotState.BOOTING: "the provider took it",
            SlotState.JOINING: "it is ready to be told whom to join"
            if phase == WAITS
            else "its program runs",
            SlotState.TRAINING: "the peer trains",
        }
        slot = replace(slot, state=wanted, since_s=event.now_s, cause=causes[wanted])
    elif booted and slot.state is SlotState.BOOTING:  # each step has a limit of its own
        slot = replace(slot, since_s=event.now_s, cause=_BOOTS[phase])
    elif waited and phase != WAITS:  # from here on it is its own time
        slot = replace(slot, since_s=event.now_s, cause="its program runs")
    work.set(i, slot)


def note(work: Work, i: int, notice_at_s: float, now_s: float, jitter: Jitter) -> None:
    """Its VM will be taken back then, and its peer leaves now: seek the next one beside it."""
    slot = work.slots[i]
    if slot.state not in OVER:
        cause = f"preempted, as announced for {clock(notice_at_s)}"
        left = replace(_only(slot, slot.vm, notice_at_s), preempted=slot.vm)
        _replace(work, i, left, now_s, cause, jitter)


def leave(work: Work, i: int, now_s: float) -> None:
    """The program of its announced VM has ended: nothing there is worth waiting for."""
    slot = work.slots[i]
    assert slot.notice_at_s is not None
    over_s = now_s - work.run.spec.silent_deadline_s  # from when on it is told to end
    work.set(i, replace(slot, notice_at_s=min(slot.notice_at_s, over_s)))


def refuse(work: Work, i: int, event: OfferRefused, jitter: Jitter) -> None:
    """The provider did not take the slot's request, or nobody knows whether it did."""
    slot = work.slots[i]
    if slot.state is not SlotState.PROVISIONING:
        return
    spec = work.spec(i)
    refusals = slot.refusals + 1
    retry_at_s = event.now_s + back_off_s(spec.policy, slot.refusals, jitter)
    unanswered_s = event.now_s - slot.since_s
    if event.kind == "ambiguous" and unanswered_s <= work.run.spec.boot_deadline_s:
        # It may exist: only looking or asking for the same name is safe.
        cause = f"{event.reason}; looking for it, and asking for the same VM again at {clock(retry_at_s)}"
        work.set(i, replace(slot, ambiguous=True, retry_at_s=retry_at_s, refusals=refusals, cause=cause))
        return
    # While others have VMs, or are about to, a slot that finds no capacity costs nothing and may find some later.
    lost = slot.lost if spec.policy.replace != "never" else 0
    why = "" if work.taken or _others_may_find(work, i) else gives_up(spec, lost, refusals)
    if event.kind == "transient" and not why:
        cause = f"{event.reason}; asking again at {clock(retry_at_s)}"
        # Nothing was made; what an earlier request without an answer made may still be there.
        since_s = slot.since_s if slot.ambiguous else event.now_s
        work.set(i, replace(slot, since_s=since_s, retry_at_s=retry_at_s, refusals=refusals, cause=cause))
        return
    asked = spec.places[slot.place]
    told = f"{asked.zone} refused {times(refusals)}" if refusals > 1 else f"{asked.zone} refused"
    maybe = slot.ambiguous or event.kind == "ambiguous"
    if event.kind == "ambiguous":
        told = f"no answer from {asked.zone} for {unanswered_s:.0f} s, {slot.vm} is ended in case it exists"
    if event.kind in ("no_capacity", "quota"):
        zone = refused_zone(work.run.spec, work.zone(asked), event.now_s)
        work.set_zone(zone)
        told = f"{asked.zone} refused {times(zone.refusals)}" if zone.refusals > 1 else told
        if zone.closed_until_s > event.now_s:
            told += f", next try {clock(zone.closed_until_s)}"
    place = next_place(spec, slot.place, refusals)
    if why:
        told += f"; {why}"
    elif place != slot.place:
        told += f"; trying {priced(spec.places[place])}"
    else:
        told += f"; trying it again at {clock(retry_at_s)}"
    work.set(
        i,
        replace(
            _only(slot, slot.vm) if maybe else slot,
            state=SlotState.FAILED if why else SlotState.WAITING,
            vm="",
            ambiguous=False,
            generation=slot.generation + 1,
            place=place,
            refusals=refusals,
            since_s=event.now_s,
            retry_at_s=retry_at_s,
            cause=f"{event.reason}; {told}",
        ),
    )


def _others_may_find(work: Work, i: int) -> bool:
    """With all requested at once: whether another's request is under way that was not refused too often already.

    Those that were do not count: slots that ask by turns would else wait for each other for ever.
    """
    if work.run.spec.first_alone:
        return False
    return any(j != i and not gives_up(work.spec(j), 0, work.slots[j].refusals) for j in work.asking)


def overdue(work: Work, i: int, now_s: float) -> str:
    """Why the slot's VM has taken too long, or ""."""
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


def end(work: Work, i: int, cause: str, now_s: float) -> None:
    """The run has stopped: wish for nothing, end the VM."""
    slot = work.slots[i]
    if slot.state not in OVER:
        slot = replace(slot, state=SlotState.ENDED, since_s=now_s, cause=cause)
    work.set(i, end_next(slot))


def end_next(slot: Slot) -> Slot:
    """Of a slot that wishes for nothing: its VM is being ended, once an announced one beside it is gone."""
    if slot.ending and slot.vm:
        return slot
    return replace(slot, vm="", ending=slot.vm or slot.ending, notice_at_s=None)


def _took(work: Work, i: int) -> None:
    """A zone that took a VM has capacity."""
    slot = work.slots[i]
    if slot.state is SlotState.PROVISIONING and not slot.confirmed:
        zone = work.zone(work.spec(i).places[slot.place])
        work.set_zone(replace(zone, refusals=0, closed_until_s=0.0, probe=""))
