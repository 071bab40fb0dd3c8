"""The status of a run, read from its store alone, so that it is the same with and without a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from cloud.clock import MAX_SKEW_S, SET_CLOCK_HINT
from cloud.prices.book import PriceBookError
from metrics.cost.bill import CostSoFar, bill_so_far, cost_so_far
from metrics.cost.checkpoints import CheckpointUse
from metrics.cost.ledger import Ledger, Terms
from metrics.epochs.granularity import granularity_of_means
from metrics.epochs.restarts import training
from metrics.epochs.scaling import full_scale_epochs
from metrics.epochs.throughput import SwarmEpoch, swarm_epochs, throughput
from metrics.events.bad_samples import bad_samples_of
from metrics.events.checkpoints import checkpoints_of
from metrics.events.evaluation import evaluations_of, of_kept_epochs
from metrics.events.peer_warnings import peer_warnings_of
from metrics.host_load import describe_host
from metrics.records import (
    CHECKPOINT_FAILED,
    CHECKPOINT_RESTORED,
    CHECKPOINT_STORED,
    CHECKPOINTS,
    SWARM_LOST,
    EgressRecord,
    EpochRecord,
    ProgressRecord,
    UtilisationRecord,
    VmEnd,
    VmRecord,
)
from metrics.run import checkpoint_use, first_trained_s, last_epoch_of, terms_of
from metrics.stats import Estimate
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta
from metrics.utilisation import busy, last_minute
from orchestrator.core.journal import JournalError, replay
from orchestrator.core.policy import clock
from orchestrator.core.state import Slot, SlotState

_EVENTS = 20
_SKEW_SHOWN_S = 2.0  # smaller clock differences are not reported
_KINDS = {
    SWARM_LOST: "all peers lost",
    CHECKPOINT_STORED: "checkpoint stored",
    CHECKPOINT_RESTORED: "checkpoint restored",
    CHECKPOINT_FAILED: "checkpoint failed",
}  # kinds of events whose code says too little


def snapshot_of(store: RunStore, now_s: float, controller_alive: bool) -> dict[str, Any]:
    """The snapshot documented at `orchestrator.controller.client.snapshot`. Raises StoreError."""
    meta = store.run_meta()
    events = store.records("events")
    epochs: list[EpochRecord] = store.records("epochs")
    progress: list[ProgressRecord] = store.records("progress")
    vms: list[VmRecord] = store.records("vms")
    full_scale = _full_scale_epochs(store, meta, epochs, progress, vms)
    warnings = list(meta.warnings)
    lost_s = [e.at_s for e in events if e.kind == SWARM_LOST]
    stored = checkpoints_of(events)
    if lost_s:
        times = ", ".join(clock(at_s) for at_s in lost_s)
        since = f" after epoch {stored.epoch}" if stored.epoch else ""
        warnings.append(
            f"all peers were lost at {times} UTC, and with them what was learned{since}, unless one that was joining kept it"
        )
    if stored.sentence:
        warnings.append(stored.sentence)
    imported = meta.imported is not None
    paused_s: float | None = None  # unknown
    try:
        state = replay(events)
        slots, paused_s = state.slots, state.paused_s
        if state.paused_at_s is not None:
            paused_s += max(0.0, (meta.ended_s or now_s) - state.paused_at_s)
            warnings.append(
                f"paused: fewer than {state.spec.min_peers} peers can train (min_peers); the others wait"
            )
    except JournalError as error:
        slots = ()
        if not imported:
            warnings.append(str(error))
    ended_s = meta.ended_s
    at_s = ended_s or now_s
    started_s = meta.started_s
    cost = cost_of(store, at_s)
    warnings += [f"cost is unknown: {reason}" for reason in cost.unknown]
    if meta.host is not None and meta.host.contended:
        warnings.append(f"the host was too busy: {describe_host(meta.host.to_json())}")
    warnings += _clocks(meta.clock_skew_s)
    if meta.monitor_unread_lines:
        warnings.append(f"{meta.monitor_unread_lines} lines of the monitor's log could not be read")
    for reason, count in meta.rejected.items():
        warnings.append(f"{count} records of peers were dropped: {reason}")
    slots_of = {row.vm: row.slot for row in vms}
    left_out = bad_samples_of(meta.bad_samples, lambda vm: slots_of.get(vm, vm))
    if left_out is not None and left_out.sentence:
        warnings.append(left_out.sentence)
    warnings += peer_warnings_of(meta.peer_warnings, lambda vm: slots_of.get(vm, vm))
    trained = training(epochs, vms)
    evaluated = evaluations_of(of_kept_epochs(meta.evaluations, trained.lost))
    document = meta.document
    preempted: dict[str, int] = {}
    for row in vms:
        preempted[row.slot] = preempted.get(row.slot, 0) + (row.end is VmEnd.PREEMPTED)
    used: dict[str, list[UtilisationRecord]] = {}
    for summary in store.records("utilisation"):
        used.setdefault(summary.vm, []).append(summary)
    return {
        "run_id": meta.run_id,
        "experiment": document.get("name"),
        "status": meta.status,
        "error": meta.error or "",
        "target": meta.target,
        "emulated": meta.emulated,
        "scales": meta.scales and meta.scales.to_json(),
        "host_contended": meta.host_contended,
        "started_s": started_s,
        "ended_s": ended_s,
        "at_s": at_s,
        "elapsed_s": None if started_s is None else at_s - started_s,
        "controller": "alive" if controller_alive else "none",
        "peers": [_logged_peer(row, epochs) for row in vms]
        if imported
        else [
            _peer(
                s,
                document,
                events,
                _last(progress, s.vm) if s.vm else None,
                last_epoch_of(meta),
                preempted.get(s.name, 0),
                meta.clock_skew_s,
                used.get(s.vm or s.ending, ()),
            )
            for s in slots
        ],
        "epoch": _epoch(
            meta,
            trained.kept,
            _last(progress, ""),
            since_s=max(lost_s, default=0.0),
            stored=max(meta.start_epoch, stored.epoch if lost_s else 0),
            training=any(s.state is SlotState.TRAINING for s in slots),
        ),
        "throughput_sps": _value(throughput(full_scale)),
        "granularity": _value(granularity_of_means(full_scale)),
        "evaluation": dict(evaluated[-1].figures) if evaluated else None,
        "evaluated_epoch": evaluated[-1].epoch if evaluated else None,
        "bad_samples": None if left_out is None else left_out.to_json(),
        "checkpoints": stored.to_json(),
        "start_from": meta.start_from and dict(meta.start_from),
        "cost": {
            "spent_usd": _text(cost.spent_usd),
            "usd_per_h": _text(cost.usd_per_h),
            "budget_usd": _text(document.get("budget_usd")),
            "estimated_usd": _text(cost.estimated_usd),
        },
        "paused_s": paused_s,
        "dropped_rounds": len({e.epoch for e in epochs if e.dropped}),
        "events": [_event(e) for e in [e for e in events if _is_shown(e)][-_EVENTS:]],
        "warnings": warnings,
    }


def cost_of(store: RunStore, now_s: float) -> CostSoFar:
    """Dollars so far and per hour at full scale. Raises StoreError."""
    try:
        return cost_so_far(*_priced(store, now_s))
    except PriceBookError as error:
        return CostSoFar(None, None, (str(error),), None)


def bill_of(store: RunStore, now_s: float) -> Ledger:
    """The bill whose sum `cost_of` returns. Raises StoreError, PriceBookError."""
    return bill_so_far(*_priced(store, now_s))


def _priced(
    store: RunStore, now_s: float
) -> tuple[list[VmRecord], list[EpochRecord], list[EgressRecord], float, Terms, dict[str, int], int | None,
           dict[str, float], CheckpointUse]:  # fmt: skip
    meta = store.run_meta()
    terms, _ = terms_of(meta)
    ingress: dict[str, int] = {}
    for row in store.records("ingress"):
        ingress[row.vm] = ingress.get(row.vm, 0) + row.network_bytes
    records = store.records
    vms, egress = records("vms"), records("egress")
    metered = {row.vm for row in egress}
    unmetered = any(row.ended_s is not None and row.vm not in metered for row in vms)
    used = checkpoint_use(checkpoints_of(records("events")), meta)
    # The progress table is long, so it is read only if needed.
    trained_s = first_trained_s(records("progress")) if unmetered else {}
    return vms, records("epochs"), egress, now_s, terms, ingress, last_epoch_of(meta), trained_s, used


def _peer(
    slot: Slot,
    document: Mapping[str, Any],
    events: list[Any],
    last: ProgressRecord | None,
    last_epoch: int | None,
    preempted: int,
    skews: Mapping[str, float],
    used: Sequence[UtilisationRecord],
) -> dict[str, Any]:
    minute = busy(last_minute(used))
    spec = replay(events[:1]).slot_spec(slot.name)
    place = spec.places[slot.place]
    return {
        "slot": slot.name,
        "vm": slot.vm or slot.ending,
        "generation": slot.generation,
        "state": str(slot.state),
        "phase": slot.phase,
        "location": place.location,
        "accelerator": place.accelerator,
        "use_spot": place.use_spot,
        "usd_per_h": _text(place.usd_per_h),
        "epoch": None if last is None else _from_1(last.epoch, last_epoch),
        "samples": None if last is None else last.samples,
        "sps": None if last is None else last.sps,
        "preemptions": preempted,
        "cause": slot.cause,
        "since_s": slot.since_s,
        "clock_skew_s": skews.get(slot.vm or slot.ending),
        "utilisation": None if minute is None else minute.to_json(),
    }


def _logged_peer(row: VmRecord, epochs: list[EpochRecord]) -> dict[str, Any]:
    """A VM of imported logs, which have no journal: the same keys as `_peer`, as far as known."""
    mine = [e for e in epochs if e.vm == row.vm]
    return {
        "slot": row.slot,
        "vm": row.vm,
        "generation": row.generation,
        "state": "DONE",
        "phase": "",
        "location": row.location,
        "accelerator": row.accelerator,
        "use_spot": row.use_spot,
        "usd_per_h": _text(row.usd_per_h),
        "epoch": max((e.epoch for e in mine), default=None),
        "samples": sum(e.samples for e in mine) or None,
        "sps": None,
        "preemptions": 0,
        "cause": row.end_cause,
        "since_s": row.ended_s,
        "clock_skew_s": None,
        "utilisation": None,
    }


def _clocks(skews: Mapping[str, float]) -> list[str]:
    """One warning per VM whose clock differs from this machine's."""
    return [
        f"{vm}: its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's "
        f"(the run keeps its own time, up to {MAX_SKEW_S:.0f} s; object stores refuse signatures that are 15 minutes off): "
        f"{SET_CLOCK_HINT} where it is wrong"
        for vm, ahead_s in sorted(skews.items())
        if abs(ahead_s) >= _SKEW_SHOWN_S
    ]


def _epoch(
    meta: RunMeta,
    epochs: Sequence[EpochRecord],
    swarm: ProgressRecord | None,
    *,
    since_s: float,
    stored: int,
    training: bool,
) -> dict[str, Any]:
    """Raw samples and rates; `current` is the epoch in progress.

    `since_s`: when all peers were last lost; what was recorded before it does not count, until the next record shows
    whether a joining peer kept it. `stored`: the epoch of the checkpoint from which training goes on then, or with which
    the run began. `training`: whether a peer trains now; otherwise the last rate and time left say nothing about now.
    """
    warmup, measured = meta.warmup_epochs, meta.epochs
    done = max((e.epoch for e in epochs if e.ended_s >= since_s), default=stored)
    swarm = None if swarm is None or swarm.at_s < since_s else swarm
    if meta.imported:  # its number of epochs was not planned
        measured = max(done - warmup, 0)
    last = warmup + measured if meta.last_epoch is None else min(meta.last_epoch, warmup + measured)
    return {
        "current": _from_1(max(done, swarm.epoch if swarm else 0), last),
        "last": last,
        "completed": done,
        "warmup": warmup,
        "measured": measured,
        "samples": swarm.samples if swarm else None,
        "target": meta.raw_target_batch_size,
        "sps": swarm.sps if swarm and training else None,
        "eta_s": swarm.eta_s if swarm and training else None,
    }


def _from_1(epochs: int, last: int | None) -> int:
    """The epoch in progress after `epochs` completed ones, counted from 1; after the last one, that one."""
    return epochs + 1 if last is None else min(epochs + 1, last)


def _full_scale_epochs(
    store: RunStore,
    meta: RunMeta,
    epochs: list[EpochRecord],
    progress: list[ProgressRecord],
    vms: list[VmRecord],
) -> list[SwarmEpoch]:
    """The swarm's epochs at full scale, as in the report."""
    terms, _ = terms_of(meta)
    watched = store.records("swarm_epochs")
    raw = swarm_epochs(epochs, meta.warmup_epochs, progress, terms.raw_target, vms, watched)
    return full_scale_epochs(raw, terms.scales, terms.raw_target)


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _last(progress: list[ProgressRecord], vm: str) -> ProgressRecord | None:
    return next((row for row in reversed(progress) if row.vm == vm), None)


def _is_shown(event: Any) -> bool:
    return event.from_state != event.to_state or event.kind in (
        *("run_created", "zone", "cause", "controller"),
        SWARM_LOST,
        *CHECKPOINTS,
    )


def _event(event: Any) -> dict[str, Any]:
    vm = f" {event.vm}" if event.vm else ""
    text = f"{event.to_state or _KINDS.get(event.kind, event.kind)}{vm}: {event.cause}"
    return {"at_s": event.at_s, "slot": event.slot, "text": text}


def _text(usd: Decimal | str | float | None) -> str | None:
    return None if usd is None else str(usd)
