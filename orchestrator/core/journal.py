"""The journal: changes as rows, the state rebuilt from rows, and the history of a slot as text.

Each row of kind "intent", "transition", "cause" or "slot" holds the complete slot after the change, so that a
rebuild needs only the last row of each slot. "zone" rows hold a circuit breaker, "run" rows the run's own
fields, "checkpoint_..." rows what a peer reported. Rows of other kinds are notes for readers. A row may lack
fields that a later version added, and contain fields that one removed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from decimal import Decimal
from functools import cache
from typing import Any, get_args, get_type_hints

from metrics.records import CHECKPOINTS, SWARM_LOST, EventRecord
from orchestrator.core.events import Checkpoint, Fact
from orchestrator.core.limits import record_request
from orchestrator.core.policy import clock, first_place, times
from orchestrator.core.state import Place, Policy, RunSpec, RunState, Slot, SlotSpec, SlotState, Zone
from orchestrator.core.until import Goals

_RUN_FIELDS = (
    *("monitor", "monitors_lost", "monitor_retry_at_s", "monitor_cause"),
    *("finishing_s", "stop_status", "stop_cause", "ended"),
    *("enough", "paused_at_s", "paused_s", "held_back", "seed"),
    *("last_epoch", "ended_by"),
)
RUN_ENDED = "run_ended"  # kind of the last row
_SLOT_KINDS = frozenset({"intent", "transition", "cause", "slot"})


class JournalError(Exception):
    """The journal was not written by a controller."""


def begin(spec: RunSpec, launched_s: float = 0.0) -> RunState:
    """The initial state of a run launched at `launched_s`."""
    slots = tuple(Slot(name=s.name, place=first_place(s)) for s in spec.slots)
    return RunState(spec=spec, slots=slots, launched_s=launched_s)


def created(spec: RunSpec) -> Fact:
    """The first row of the journal: the run's complete specification."""
    data = json.dumps(asdict(spec), default=str)
    return Fact("run_created", "", -1, "", "", "", "launched", data)


def note(kind: str, cause: str, slot: str = "", generation: int = -1, vm: str = "") -> Fact:
    """A row that changes no state: information for readers."""
    return Fact(kind, slot, generation, vm, "", "", cause, "{}")


def swarm_lost(after: RunState, joining: int) -> Fact:
    """The row for the loss of every peer that trained. `joining`: peers that could train and may have the state."""
    epoch = after.checkpoint_epoch
    learned = f"what was learned after epoch {epoch}" if epoch else "what was learned"
    cause = f"every peer that trained is lost, and with them {learned}"
    last = after.last_epoch or after.spec.epochs
    if last is not None and epoch >= last:
        cause = f"every peer is lost after the last epoch, {epoch}, of which a checkpoint is stored"
        cause += "" if after.stop_status else "; a replacement only evaluates it"
    elif not after.stop_status:
        cause += f"; training goes on at epoch {epoch + 1}" if epoch else "; training restarts at epoch 1"
        cause += ", unless one that was joining has loaded the state" if joining else ""
    return note(SWARM_LOST, cause)


def checkpoint_noted(state: RunState, event: Checkpoint) -> RunState:
    """The state with a checkpoint's report in the journal. The same state, if it is there, or of no VM of the run."""
    note_key = (event.kind, event.vm, event.key)
    if note_key in state.checkpoint_notes or event.vm not in state.intents or state.ended:
        return state
    epoch = max(state.checkpoint_epoch, event.epoch or 0)
    return replace(state, checkpoint_epoch=epoch, checkpoint_notes=state.checkpoint_notes | {note_key})


def checkpoint_fact(state: RunState, event: Checkpoint) -> Fact:
    """The row of a checkpoint's report."""
    name, _, generation = event.vm.removeprefix(f"{state.spec.run_id}-").rpartition("-")
    data = json.dumps({"key": event.key, "epoch": event.epoch, **json.loads(event.data_json)})
    return Fact(event.kind, name, int(generation), event.vm, "", "", event.cause, data)


def taken_over(earlier_pid: int, pid: int) -> Fact:
    """The row for a controller that continues the run of an earlier one."""
    return note(
        "controller", f"the controller was replaced: process {pid} continues for process {earlier_pid}"
    )


def facts(
    before: RunState,
    after: RunState,
    slots: Iterable[tuple[Slot, Slot]],
    zones: Iterable[tuple[Zone, Zone]] = (),
) -> tuple[Fact, ...]:
    """Rows for the changes of the run's own fields, and of slots and zones (before, after).

    Every prefix of these rows replays to a valid state.
    """
    out: list[Fact] = []
    ends = after.ended and not before.ended
    if before is not after:
        run_before, run_after = _run_data(before), _run_data(after)
        # The end of the run comes last, after the rows with the final state of every slot.
        not_ended = run_after | {"ended": before.ended}
        if not_ended != run_before:
            out.append(_run_fact(before, after, not_ended))
    out += [_slot_fact(old, new) for old, new in slots]
    out += [_zone_fact(old, new, after.spec) for old, new in zones]  # after the intent of the zone's probe
    if ends:
        out.append(_run_fact(before, after, _run_data(after)))
    return tuple(out)


def replay(events: Sequence[EventRecord]) -> RunState:
    """The state after these rows, ordered by seq. Raises JournalError if the first is not "run_created"."""
    if not events or events[0].kind != "run_created":
        raise JournalError("the journal does not begin with run_created: the run was never launched")
    state = begin(_spec(json.loads(events[0].data_json)), events[0].at_s)
    slots = {slot.name: slot for slot in state.slots}
    zones: dict[str, Zone] = {}
    intents: set[str] = set()
    requested_s: deque[float] = deque()
    replaced_s: deque[float] = deque()
    run: dict[str, Any] = {}
    notes: set[tuple[str, str, str]] = set()
    checkpoint_epoch = 0
    for event in events[1:]:
        if event.kind in _SLOT_KINDS:
            slot = _slot(json.loads(event.data_json))
            slots[slot.name] = slot
            if slot.vm:
                intents.add(slot.vm)
            if event.kind == "intent":
                record_request(requested_s, replaced_s, slot)
        elif event.kind == "zone":
            data = json.loads(event.data_json)
            if (
                "market" in data
            ):  # the first format only named the zone; ignoring it costs at most one refusal
                zones[data["market"]] = Zone(**_known(Zone, data))
        elif event.kind in CHECKPOINTS:
            data = json.loads(event.data_json)
            notes.add((event.kind, event.vm, data["key"]))
            checkpoint_epoch = max(checkpoint_epoch, data["epoch"] or 0)
        elif event.kind in ("run", RUN_ENDED):
            data = json.loads(event.data_json)
            run |= {k: data[k] for k in _RUN_FIELDS if k in data}
    return replace(
        state,
        slots=tuple(slots.values()),
        zones=tuple(zones[name] for name in sorted(zones)),
        intents=frozenset(intents),
        requested_s=tuple(requested_s),
        replaced_s=tuple(replaced_s),
        checkpoint_epoch=checkpoint_epoch,
        checkpoint_notes=frozenset(notes),
        **run,
    )


def preempted_vm(row: Fact | EventRecord) -> str:
    """The last VM of the row's slot that was preempted, or whose preemption was announced; "": none.

    Rows written before `Slot.preempted` existed record it in their cause only. No other code parses a cause.
    """
    if row.kind != "transition":
        return ""
    data = json.loads(row.data_json)
    by_cause = row.vm if row.cause.startswith("preempted") else ""
    return data.get("preempted", by_cause)


def story(events: Sequence[EventRecord], slot: str = "") -> list[str]:
    """The history of a slot, or of the run and every slot, as one line per row; times in UTC."""
    began_s = events[0].at_s if events else 0.0
    lines: list[str] = []
    for event in events:
        if slot and event.slot not in (slot, ""):
            continue
        if slot and not event.slot and event.kind == "note":
            continue
        lines.append(f"{clock(event.at_s)} +{event.at_s - began_s:7.1f} s  {_sentence(event)}")
    return lines


def _sentence(event: EventRecord) -> str:
    if event.kind == "zone":
        return event.cause
    who = f"{event.slot}#{event.generation}" if event.slot else "run"
    if event.from_state != event.to_state:
        return f"{who} {event.from_state or 'new'} -> {event.to_state}: {event.cause}"
    if event.kind in ("slot", "cause"):
        data = json.loads(event.data_json)
        known = [f"{k} {data[k]}" for k in ("phase", "address", "ending") if data.get(k)]
        return f"{who} {event.to_state}: {event.cause}" + (f" ({', '.join(known)})" if known else "")
    return f"{who} {event.kind}: {event.cause}"


def _run_data(state: RunState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in _RUN_FIELDS}


def _run_fact(before: RunState, after: RunState, data: dict[str, Any]) -> Fact:
    kind = RUN_ENDED if data["ended"] else "run"
    names = ("ended" if data["ended"] else _run_name(after), _run_name(before))
    return Fact(kind, "", -1, "", names[1], names[0], _run_cause(before, after), json.dumps(data))


def _run_cause(before: RunState, after: RunState) -> str:
    if after.stop_cause:
        return after.stop_cause
    if after.monitors_lost > before.monitors_lost:
        return f"the monitor died ({after.monitor_cause}): {after.monitor_vm()} goes on"
    least = after.spec.min_peers
    if after.paused and not before.paused:
        return f"fewer than {least} peers can train (min_peers): the others wait, and are billed"
    if before.paused and not after.paused:
        return f"the pause is over; the run has been paused for {after.paused_s:.0f} s in all"
    if after.last_epoch != before.last_epoch:
        return _last_epoch_cause(after)
    if after.finishing_s != before.finishing_s:
        return "all peers are over"
    if after.held_back != before.held_back:
        return f"no VM is requested: {after.held_back}" if after.held_back else "VMs are requested again"
    if after.seed != before.seed:
        return f"{after.seed} begins the swarm" if after.seed else f"{before.seed}, which began it, is lost"
    if after.enough != before.enough:
        return f"{least} peers can train" if least > 1 else "a peer can train"
    return f"the monitor is {after.monitor}"


def _last_epoch_cause(state: RunState) -> str:
    cause, last = f"the goal {state.ended_by} is reached (train.until)", state.last_epoch
    if last == state.spec.epochs:
        return f"{cause}, but too late for an earlier end: epoch {last} is the last one, as planned (measure)"
    return f"{cause}: epoch {last} is the last one"


def _run_name(state: RunState) -> str:
    if state.stop_status:
        return f"stopping ({state.stop_status})"
    if state.finishing_s is not None:
        return "finishing"
    return "paused" if state.paused else "running"


def _zone_fact(old: Zone, zone: Zone, spec: RunSpec) -> Fact:
    name = zone.market
    remembered = (zone.recent_failures, zone.recent_at_s) != (old.recent_failures, old.recent_at_s)
    if zone.refusals == old.refusals and remembered:
        cause = f"a VM was preempted at {name}"
    elif not zone.refusals:
        cause = f"{name} has capacity again"
    elif zone.probe:
        cause = f"{name} refused {times(zone.refusals)}; {zone.probe} asks it again, alone"
    elif zone.refusals >= spec.breaker_failures:
        cause = (
            f"{name} refused {times(zone.refusals)} in a row: not asked before {clock(zone.closed_until_s)}"
        )
    else:
        cause = f"{name} refused {times(zone.refusals)}"
    return Fact("zone", "", -1, zone.probe, "", "", cause, json.dumps(asdict(zone)))


def _slot_fact(old: Slot, new: Slot) -> Fact:
    kind = "slot"
    if new.state is SlotState.PROVISIONING and old.vm != new.vm:
        kind = "intent"
    elif new.state is not old.state:
        kind = "transition"
    elif (
        new.cause != old.cause
    ):  # e.g. it keeps waiting, or its VM is to be terminated: recorded for readers and restarts
        kind = "cause"
    vm = new.vm or new.ending or old.vm
    generation = old.generation if vm == old.vm else new.generation
    data = {name: getattr(new, name) for name in _names(Slot)}
    return Fact(kind, new.name, generation, vm, old.state, new.state, new.cause, json.dumps(data))


def _slot(data: Mapping[str, Any]) -> Slot:
    values: dict[str, Any] = {**_known(Slot, data), "state": SlotState(data["state"])}
    return Slot(**values)


def _spec(data: Mapping[str, Any]) -> RunSpec:
    slots = tuple(
        SlotSpec(
            name=s["name"],
            places=tuple(Place(**_known(Place, p)) for p in s["places"]),
            policy=Policy(**_known(Policy, s["policy"])),
        )
        for s in data["slots"]
    )
    goals = data.get("until")
    until = None if goals is None else Goals(**_known(Goals, goals))
    values: dict[str, Any] = {**_known(RunSpec, data), "slots": slots, "until": until}
    return RunSpec(**values)


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that this version knows; dollars are stored as text."""
    known = {k: data[k] for k in _names(kind) if k in data}
    for key in _decimals(kind):
        if known.get(key) is not None:
            known[key] = Decimal(known[key])
    return known


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@cache
def _decimals(kind: type[Any]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in _names(kind) if Decimal in (hints[name], *get_args(hints[name])))
