"""What the budget guard is told: dollars so far, and an hour, from the run's records."""

from __future__ import annotations

import json
from decimal import Decimal

from analysis.planning.reserve import Pace, egress_ceiling_usd_per_h
from cloud.prices.book import PriceBookError
from metrics.cost.ledger import Ledger
from metrics.records import EgressRecord, EventRecord
from metrics.store.database import RunStore
from orchestrator.controller.tick import Spent
from orchestrator.controller.view import bill_of
from orchestrator.core.state import RunState, SlotState


def spent_of(store: RunStore, now_s: float, state: RunState) -> Spent:
    """The bill until now, the VMs rented now, and traffic as dear as that of the dearest epoch so far.

    What lost VMs sent after their last record is in the bill as an estimate (`metrics.cost.unreported`). A VM whose launch is
    under way is in no list yet, and may be billed since it was asked for: it counts at its place's ceiling.
    """
    spec = state.spec
    pace = Pace(spec.metering_period_s, spec.decision_s, spec.teardown_s)
    try:
        bill = bill_of(store, now_s)
    except PriceBookError:
        return Spent(None, None, None)
    rows = store.records("vms")
    rented = [row.usd_per_h for row in rows if row.ended_s is None]
    known = [usd for usd in rented if usd is not None]
    burn = sum(known, Decimal(0)) if len(known) == len(rented) else None
    spent, asked = bill.sum(), _asked_usd(store, state, {row.vm for row in rows}, now_s)
    if asked != 0:  # a sum is exact as long as nothing is added to it
        spent = None if spent is None or asked is None else spent + asked
    epoch_usd = _dearest_epoch_usd(bill.measured, store.records("egress"))
    if epoch_usd is None:
        return Spent(spent, burn, None)
    return Spent(spent, burn, egress_ceiling_usd_per_h(epoch_usd, _epoch_s(store, pace), pace))


def _asked_usd(store: RunStore, state: RunState, listed: set[str], now_s: float) -> Decimal | None:
    """The most that VMs which were asked for, and were in no list yet, may have cost; None: a price is unknown.

    A request that only stands in line counts as if it had been made, and so does a VM that is being replaced or ended
    although no list ever showed it: rather too much than too little.
    """
    usd = Decimal(0)
    intents: dict[str, EventRecord] | None = None
    for wish, slot in zip(state.spec.slots, state.slots, strict=True):
        for vm in (slot.vm, slot.ending):
            if not vm or vm in listed:
                continue
            if intents is None:
                intents = {e.vm: e for e in store.records("events") if e.kind == "intent"}
            asked = intents.get(vm)
            place = slot.place if asked is None else json.loads(asked.data_json)["place"]
            ceiling = wish.places[place].ceiling_usd_per_h
            if ceiling is None:
                return None
            from_s = slot.since_s if asked is None else asked.at_s
            if vm == slot.vm and slot.state is SlotState.PROVISIONING and not slot.ambiguous:
                # What was refused for the moment made nothing, and is not asked again before its time.
                from_s = max(slot.since_s, slot.retry_at_s)
            usd += ceiling * Decimal(str(max(0.0, now_s - from_s))) / Decimal(3600)
    return usd


def _dearest_epoch_usd(bill: Ledger, egress: list[EgressRecord]) -> Decimal | None:
    """The traffic's dollars, by epochs' shares of the bytes."""
    parts = [bill.sum("egress"), bill.sum("data")]
    usd = [part for part in parts if part is not None]
    if len(usd) < len(parts):
        return None
    sent: dict[int, int] = {}
    for row in egress:
        sent[row.epoch] = sent.get(row.epoch, 0) + row.bytes
    total = sum(sent.values())
    return sum(usd, Decimal(0)) * max(sent.values()) / total if total else Decimal(0)


def _epoch_s(store: RunStore, pace: Pace) -> float:
    """The mean epoch until now, in the study's seconds."""
    ends = sorted({e.epoch: e.ended_s for e in store.records("epochs")}.values())
    if len(ends) < 2:
        return pace.all_s
    plan = store.run_meta().emulation
    stretch = 1.0  # unknown on rented VMs only, where nothing is scaled
    if plan is not None and plan.epoch_s is not None and plan.study_epoch_s is not None:
        stretch = plan.study_epoch_s / plan.epoch_s
    return stretch * (ends[-1] - ends[0]) / (len(ends) - 1)
