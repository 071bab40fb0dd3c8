"""Assign waiting slots to places, subject to circuit breakers, rate limits and budget."""

from __future__ import annotations

import heapq
from dataclasses import replace

from orchestrator.core.indexed_state import WorkingState
from orchestrator.core.limits import RateLimit, over_rate, unaffordable
from orchestrator.core.policy import Jitter, back_off_s, clock, places_in_order, priced, times
from orchestrator.core.state import OVER, Place, Slot, SlotState


def place_waiting_slots(work: WorkingState, now_s: float, jitter: Jitter) -> str:
    """Give VMs to waiting slots. Returns why the run must stop for lack of money, or "".

    With `first_alone`, no other VM is requested until the first peer's address is known. A slot delayed by a
    rate limit keeps its turn; a slot whose places are all excluded waits until one of them may be available.
    """
    if work.done:
        return ""  # the run is nearly over: a new peer would arrive too late
    held_back = ""
    kept: list[int] = []
    while work.ready:
        if work.run.spec.first_alone and work.live and not work.joinable():
            break
        i = heapq.heappop(work.ready)
        slot = work.slots[i]
        if slot.state is not SlotState.WAITING or slot.blocked or now_s < slot.retry_at_s:
            continue  # an outdated entry; the slot is due again at its retry time
        limit = over_rate(work.run.spec, work.requested_s, work.replaced_s, slot, now_s)
        if limit is not None:
            held_back = held_back or limit.reached(work.run.spec)
            kept.append(i)
            if limit is RateLimit.VMS_PER_MIN:
                break
            continue
        shortfall = _place_slot(work, i, slot, now_s, jitter)
        if shortfall and not work.held and not _any_affordable(work):
            return shortfall
    for i in kept:
        heapq.heappush(work.ready, i)
    if held_back != work.run.held_back:
        work.run = replace(work.run, held_back=held_back)
    return ""


def _place_slot(work: WorkingState, i: int, slot: Slot, now_s: float, jitter: Jitter) -> str:
    """Request a VM at the first available place.

    Returns the lack of money if nothing else stands in the way, or "".
    """
    spec = work.spec(i)
    skipped: list[str] = []
    shortfall = ""
    reopens_s: list[float] = []
    for index in places_in_order(spec, slot.place, work.rank(now_s)):
        place = spec.places[index]
        closed, until_s = _closed(work, place, now_s)
        if closed:
            skipped.append(closed)
            reopens_s.append(until_s)
            continue
        too_expensive = unaffordable(work.run, work.held_usd_per_h(), place)
        if too_expensive:
            skipped.append(too_expensive)
            shortfall = too_expensive
            continue
        _intend(work, i, slot, index, "; ".join(skipped), now_s)
        return ""
    wait_s = back_off_s(spec.policy, max(slot.refusals, 2), jitter)
    retry_at_s = now_s + wait_s
    if reopens_s and not shortfall:
        retry_at_s = max(retry_at_s, min(reopens_s))
    waits = replace(slot, retry_at_s=retry_at_s, cause="; ".join(skipped))
    work.set(i, waits)
    return "" if reopens_s else shortfall


def _any_affordable(work: WorkingState) -> bool:
    """Whether any slot that still needs a VM can afford one somewhere."""
    held = work.held_usd_per_h()
    places = {
        place
        for spec, slot in zip(work.run.spec.slots, work.slots, strict=True)
        if slot.state not in OVER
        for place in spec.places
    }
    return any(not unaffordable(work.run, held, place) for place in places)


def _closed(work: WorkingState, place: Place, now_s: float) -> tuple[str, float]:
    """Why a zone is closed now and when it reopens, or ("", 0)."""
    zone = work.zone(place)
    if now_s < zone.closed_until_s:
        return (
            f"{place.zone} refused {times(zone.refusals)}, next try {clock(zone.closed_until_s)}",
            zone.closed_until_s,
        )
    if zone.probe and work.is_unconfirmed(zone.probe):
        return f"{place.zone} refused {times(zone.refusals)}, {zone.probe} is asking it again", 0.0
    return "", 0.0


def _intend(work: WorkingState, i: int, slot: Slot, index: int, skipped: str, now_s: float) -> None:
    place = work.spec(i).places[index]
    vm = work.run.vm_name(slot)
    zone = work.zone(place)
    if zone.refusals >= work.run.spec.breaker_failures:
        work.set_zone(replace(zone, probe=vm))
    cause = slot.cause or "the slot has no VM"
    if index != slot.place:
        cause = f"{skipped or cause}; trying {priced(place)}"
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
