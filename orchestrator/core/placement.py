"""Which waiting slots get a VM's name now, and where: zones that refuse, limits and money say no."""

from __future__ import annotations

import heapq
from dataclasses import replace

from orchestrator.core.indexed_state import Work
from orchestrator.core.limits import RateLimit, over_rate, unaffordable
from orchestrator.core.policy import Jitter, back_off_s, clock, places_in_order, priced, times
from orchestrator.core.state import OVER, Place, Slot, SlotState


def seek(work: Work, now_s: float, jitter: Jitter) -> str:
    """Wish for VMs. Returns why the run has to stop for lack of money, or "".

    With `first_alone` the first peer goes alone until its address is known. A slot that is held back by a limit of the run keeps
    its turn; one whose places all say no waits until one of them may say yes.
    """
    if work.done:
        return ""  # the run is nearly over: a new peer would only come too late
    held_back = ""
    kept: list[int] = []
    while work.ready:
        if work.run.spec.first_alone and work.live and not work.joinable():
            break
        i = heapq.heappop(work.ready)
        slot = work.slots[i]
        if slot.state is not SlotState.WAITING or slot.blocked or now_s < slot.retry_at_s:
            continue  # told before; it comes again at its time
        limit = over_rate(work.run.spec, work.requested_s, work.replaced_s, slot, now_s)
        if limit is not None:
            held_back = held_back or limit.reached(work.run.spec)
            kept.append(i)
            if limit is RateLimit.VMS_PER_MIN:
                break
            continue
        money = _seek_one(work, i, slot, now_s, jitter)
        if money and not work.held and not _any_affordable(work):
            return money
    for i in kept:
        heapq.heappush(work.ready, i)
    if held_back != work.run.held_back:
        work.run = replace(work.run, held_back=held_back)
    return ""


def _seek_one(work: Work, i: int, slot: Slot, now_s: float, jitter: Jitter) -> str:
    """Take the first place that may be asked. Returns what the lack of money is, where there is nothing else."""
    spec = work.spec(i)
    said: list[str] = []
    money = ""
    reopens_s: list[float] = []
    for index in places_in_order(spec, slot.place):
        place = spec.places[index]
        closed, until_s = _closed(work, place, now_s)
        if closed:
            said.append(closed)
            reopens_s.append(until_s)
            continue
        dear = unaffordable(work.run, work.held_usd_per_h(), place)
        if dear:
            said.append(dear)
            money = dear
            continue
        _intend(work, i, slot, index, "; ".join(said), now_s)
        return ""
    wait_s = back_off_s(spec.policy, max(slot.refusals, 2), jitter)
    retry_at_s = now_s + wait_s
    if reopens_s and not money:
        retry_at_s = max(retry_at_s, min(reopens_s))
    waits = replace(slot, retry_at_s=retry_at_s, cause="; ".join(said))
    work.set(i, waits)
    return "" if reopens_s else money


def _any_affordable(work: Work) -> bool:
    """Whether any slot that still wishes for a VM could pay for one somewhere."""
    held = work.held_usd_per_h()
    places = {
        place
        for wish, slot in zip(work.run.spec.slots, work.slots, strict=True)
        if slot.state not in OVER
        for place in wish.places
    }
    return any(not unaffordable(work.run, held, place) for place in places)


def _closed(work: Work, place: Place, now_s: float) -> tuple[str, float]:
    """Why the place is not to be asked now and when it may be, or ""."""
    zone = work.zone(place)
    if now_s < zone.closed_until_s:
        return (
            f"{place.zone} refused {times(zone.refusals)}, next try {clock(zone.closed_until_s)}",
            zone.closed_until_s,
        )
    if zone.probe and work.is_asking(zone.probe):
        return f"{place.zone} refused {times(zone.refusals)}, {zone.probe} is asking it again", 0.0
    return "", 0.0


def _intend(work: Work, i: int, slot: Slot, index: int, said: str, now_s: float) -> None:
    place = work.spec(i).places[index]
    vm = work.run.vm_name(slot)
    zone = work.zone(place)
    if zone.refusals >= work.run.spec.breaker_failures:
        work.set_zone(replace(zone, probe=vm))
    cause = slot.cause or "the slot has no VM"
    if index != slot.place:
        cause = f"{said}; trying {priced(place)}"
    work.intend(
        i,
        replace(
            slot,
            state=SlotState.PROVISIONING,
            vm=vm,
            place=index,
            since_s=now_s,
            retry_at_s=now_s,
            confirmed=False,
            ambiguous=False,
            cause=cause,
        ),
    )
