"""Input of the budget guard: dollars so far and per hour, from the run's records."""

from __future__ import annotations

import json
from decimal import Decimal

from analysis.planning.reserve import Pace, egress_ceiling_usd_per_h
from cloud.prices.book import PriceBookError
from metrics.cost.ledger import READING_CHECKPOINTS, Ledger
from metrics.records import EgressRecord, EventRecord
from metrics.store.database import RunStore
from orchestrator.controller.tick import Spent
from orchestrator.controller.view import bill_of
from orchestrator.core.state import RunState, SlotState


def spent_of(store: RunStore, now_s: float, state: RunState) -> Spent:
    """Dollars so far, per hour for current VMs, and per hour for traffic (at the most expensive epoch's rate).

    The bill includes an estimate of what lost VMs sent after their last record (`metrics.cost.unreported`). A
    VM that is being launched is not listed yet but may be billed since its request, so it counts at the
    ceiling of its place.
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
    spent, unlisted_usd = bill.sum(), _unlisted_usd(store, state, {row.vm for row in rows}, now_s)
    if unlisted_usd != 0:  # adding nothing would still round the exact sum
        spent = None if spent is None or unlisted_usd is None else spent + unlisted_usd
    epoch_usd = _max_epoch_usd(bill.measured, store.records("egress"))
    if epoch_usd is None:
        return Spent(spent, burn, None)
    return Spent(spent, burn, egress_ceiling_usd_per_h(epoch_usd, _epoch_s(store, pace), pace))


def _unlisted_usd(store: RunStore, state: RunState, listed: set[str], now_s: float) -> Decimal | None:
    """Upper bound of the cost of VMs that were requested but never listed; None: a price is unknown.

    Queued requests count as made. So do never listed VMs that are being replaced or terminated: the estimate
    errs on the high side.
    """
    usd = Decimal(0)
    intents: dict[str, EventRecord] | None = None
    for spec, slot in zip(state.spec.slots, state.slots, strict=True):
        for vm in (slot.vm, slot.ending):
            if not vm or vm in listed:
                continue
            if intents is None:
                intents = {e.vm: e for e in store.records("events") if e.kind == "intent"}
            intent = intents.get(vm)
            place = slot.place if intent is None else json.loads(intent.data_json)["place"]
            ceiling = spec.places[place].ceiling_usd_per_h
            if ceiling is None:
                return None
            from_s = slot.since_s if intent is None else intent.at_s
            if vm == slot.vm and slot.state is SlotState.PROVISIONING and not slot.ambiguous:
                # A transient refusal created nothing, and the request is not repeated before its retry time.
                from_s = max(slot.since_s, slot.retry_at_s)
            usd += ceiling * Decimal(str(max(0.0, now_s - from_s))) / Decimal(3600)
    return usd


def _max_epoch_usd(bill: Ledger, egress: list[EgressRecord]) -> Decimal | None:
    """Cost of the traffic of the most expensive epoch, by its share of the bytes; None: unknown.

    A checkpoint is downloaded once, not in each epoch.
    """
    bill = Ledger(tuple(line for line in bill.lines if line.what != READING_CHECKPOINTS))
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
    """Mean duration of an epoch until now, in seconds at full scale."""
    ends = sorted({e.epoch: e.ended_s for e in store.records("epochs")}.values())
    if len(ends) < 2:
        return pace.all_s
    plan = store.run_meta().emulation
    stretch = 1.0  # unknown on rented VMs only, where nothing is scaled
    if plan is not None and plan.epoch_s is not None and plan.study_epoch_s is not None:
        stretch = plan.study_epoch_s / plan.epoch_s
    return stretch * (ends[-1] - ends[0]) / (len(ends) - 1)
