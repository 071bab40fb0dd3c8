"""The journal: what changed as rows, the state rebuilt from rows, and a slot's story in sentences.

Each row of kind "intent", "transition" or "slot" holds the whole slot after the change, so that a rebuild is
the last row of each slot; "run" rows hold what is the run's own. Other kinds are notes for people.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from decimal import Decimal
from typing import Any

from metrics.records import EventRecord
from orchestrator.core.events import Fact
from orchestrator.core.policy import first_place
from orchestrator.core.state import Place, Policy, RunSpec, RunState, Slot, SlotSpec, SlotState

__all__ = ["JournalError", "begin", "created", "facts", "note", "replay", "story"]

_RUN_FIELDS = (
    *("monitor", "monitors_lost", "monitor_retry_at_s", "monitor_cause"),
    *("finishing_s", "stop_status", "stop_cause", "ended"),
)
_SLOT_KINDS = frozenset({"intent", "transition", "slot"})


class JournalError(Exception):
    """The journal is not one a controller wrote."""


def begin(spec: RunSpec) -> RunState:
    """A run before anything happened."""
    return RunState(spec=spec, slots=tuple(Slot(name=s.name, place=first_place(s)) for s in spec.slots))


def created(spec: RunSpec) -> Fact:
    """The journal's first row: all the core was told of the run."""
    data = json.dumps(asdict(spec), default=str)
    return Fact("run_created", "", -1, "", "", "", "launched", data)


def note(kind: str, cause: str, slot: str = "", generation: int = -1, vm: str = "") -> Fact:
    """A row that changes nothing: something a person will want to know."""
    return Fact(kind, slot, generation, vm, "", "", cause, "{}")


def facts(before: RunState, after: RunState) -> tuple[Fact, ...]:
    """What changed from one state to the next. Any part of it from the front replays to a valid state."""
    out: list[Fact] = []
    run_before, run_after = _run_data(before), _run_data(after)
    if run_after != run_before:
        # That the run is over comes last, when the journal says what became of every slot.
        not_ended = run_after | {"ended": before.ended}
        if not_ended != run_before:
            out.append(_run_fact(before, after, not_ended))
    for old, new in zip(before.slots, after.slots, strict=True):
        if old != new:
            out.append(_slot_fact(old, new))
    if after.ended and not before.ended:
        out.append(_run_fact(before, after, run_after))
    return tuple(out)


def replay(events: Sequence[EventRecord]) -> RunState:
    """The state after these rows (by seq). Raises JournalError when the first is not "run_created"."""
    if not events or events[0].kind != "run_created":
        raise JournalError("the journal does not begin with run_created: the run was never launched")
    state = begin(_spec(json.loads(events[0].data_json)))
    for event in events[1:]:
        if event.kind in _SLOT_KINDS:
            slot = _slot(json.loads(event.data_json))
            intents = state.intents | {slot.vm} if slot.vm else state.intents
            slots = tuple(slot if s.name == slot.name else s for s in state.slots)
            state = replace(state, slots=slots, intents=intents)
        elif event.kind in ("run", "run_ended"):
            data = json.loads(event.data_json)
            state = replace(state, **{k: data[k] for k in _RUN_FIELDS if k in data})
    return state


def story(events: Sequence[EventRecord], slot: str = "") -> list[str]:
    """What happened to a slot (or, without one, to the run as a whole and every slot), a sentence a row."""
    began_s = events[0].at_s if events else 0.0
    lines: list[str] = []
    for event in events:
        if slot and event.slot not in (slot, ""):
            continue
        if slot and not event.slot and event.kind == "note":
            continue
        lines.append(f"+{event.at_s - began_s:7.1f} s  {_sentence(event)}")
    return lines


def _sentence(event: EventRecord) -> str:
    who = f"{event.slot}#{event.generation}" if event.slot else "run"
    if event.from_state != event.to_state:
        return f"{who} {event.from_state or 'new'} -> {event.to_state}: {event.cause}"
    if event.kind == "slot":
        data = json.loads(event.data_json)
        known = [f"{k} {data[k]}" for k in ("phase", "address", "ending") if data.get(k)]
        return f"{who} {event.to_state}: {event.cause}" + (f" ({', '.join(known)})" if known else "")
    return f"{who} {event.kind}: {event.cause}"


def _run_data(state: RunState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in _RUN_FIELDS}


def _run_fact(before: RunState, after: RunState, data: dict[str, Any]) -> Fact:
    kind = "run_ended" if data["ended"] else "run"
    cause = after.stop_cause
    if not cause:
        cause = "all peers are over" if after.finishing_s is not None else f"the monitor is {after.monitor}"
        if after.monitors_lost > before.monitors_lost:
            cause = f"the monitor died ({after.monitor_cause}): {after.monitor_vm()} goes on"
    names = ("ended" if data["ended"] else _run_name(after), _run_name(before))
    return Fact(kind, "", -1, "", names[1], names[0], cause, json.dumps(data))


def _run_name(state: RunState) -> str:
    if state.stop_status:
        return f"stopping ({state.stop_status})"
    return "running" if state.finishing_s is None else "finishing"


def _slot_fact(old: Slot, new: Slot) -> Fact:
    kind = "slot"
    if new.state is SlotState.PROVISIONING and old.vm != new.vm:
        kind = "intent"
    elif new.state is not old.state:
        kind = "transition"
    vm = new.vm or new.ending or old.vm
    generation = old.generation if vm == old.vm else new.generation
    return Fact(kind, new.name, generation, vm, old.state, new.state, new.cause, json.dumps(asdict(new)))


def _slot(data: dict[str, Any]) -> Slot:
    known = {f.name for f in fields(Slot)}
    values: dict[str, Any] = {k: v for k, v in data.items() if k in known}
    values["state"] = SlotState(data["state"])
    return Slot(**values)


def _spec(data: dict[str, Any]) -> RunSpec:
    slots = tuple(
        SlotSpec(
            name=s["name"],
            places=tuple(_place(p) for p in s["places"]),
            policy=Policy(**s["policy"]),
        )
        for s in data["slots"]
    )
    values: dict[str, Any] = {**data, "slots": slots, "budget_usd": _decimal(data["budget_usd"])}
    return RunSpec(**values)


def _place(data: dict[str, Any]) -> Place:
    values: dict[str, Any] = {**data, "usd_per_h": _decimal(data["usd_per_h"])}
    return Place(**values)


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
