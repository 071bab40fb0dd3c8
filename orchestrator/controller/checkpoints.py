"""Events from what the peers' status.json files say about checkpoints (`checkpoints`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cloud.provider import Observed
from cloud.vm_report import printable
from experiments.checkpoints.layout import parse_name
from metrics.readable import size
from metrics.records import CHECKPOINT_FAILED, CHECKPOINT_RESTORED, CHECKPOINT_STORED
from orchestrator.core.events import Checkpoint
from orchestrator.core.state import RunState

_MOST_NOTES = 50  # of one VM, besides those of stored checkpoints: a broken VM does not fill the journal
_LONGEST_TEXT = 500

_STORED: Mapping[str, type] = {
    "name": str, "epoch": int, "bytes": int, "sent_bytes": int, "copy_s": float, "upload_s": float, "at_s": float,
}  # fmt: skip
_RESTORED: Mapping[str, type] = {
    "name": str, "prefix": str, "epoch": int, "bytes": int, "seconds": float, "at_s": float,
}  # fmt: skip
_FAILED: Mapping[str, type] = {"count": int, "epoch": int, "error": str}


def checkpoint_events(
    seen: Iterable[Observed], state: RunState, last_epoch: int, now_s: float, most_bytes: int
) -> list[Checkpoint]:
    """Return what the provider's list reports that is not in the journal yet, oldest first per VM.

    Invalid entries, those of more than `most_bytes`, and epochs that the run does not have, are left out: bytes and times are
    turned into dollars, and a budget ends the run. A time outside of the VM's life is moved to its nearer end.
    """
    found: list[Checkpoint] = []
    for o in seen:
        status = o.status.get("checkpoints")
        if not isinstance(status, Mapping):
            continue
        known = {(kind, key) for kind, vm, key in state.checkpoint_notes if vm == o.vm}
        others = sum(1 for kind, _ in known if kind != CHECKPOINT_STORED)
        for event in _of_vm(o, status, last_epoch, now_s, most_bytes):
            if (event.kind, event.key) in known or (
                event.kind != CHECKPOINT_STORED and others >= _MOST_NOTES
            ):
                continue
            found.append(event)
    return found


def _of_vm(
    seen: Observed, status: Mapping[str, Any], last_epoch: int, now_s: float, most_bytes: int
) -> Iterable[Checkpoint]:
    def entry_of(given: Any, kinds: Mapping[str, type]) -> dict[str, Any] | None:
        entry = _entry(given, kinds)
        if entry is None or entry["epoch"] > last_epoch or entry["bytes"] > most_bytes:
            return None
        return {**entry, "at_s": min(max(entry["at_s"], seen.requested_at_s), now_s)}

    vm = seen.vm
    restored = entry_of(status.get("restored"), _RESTORED)
    if restored is not None:
        text = f"began from checkpoint {restored['name']}, {size(restored['bytes'])} in {restored['seconds']:.0f} s"
        yield _event(now_s, vm, CHECKPOINT_RESTORED, restored, text)
    stored = status.get("stored")
    for one in stored if isinstance(stored, list) else ():
        entry = entry_of(one, _STORED)
        if entry is not None and parse_name(entry["name"]) == (entry["epoch"], vm):
            text = f"{entry['name']}, {size(entry['bytes'])}, uploaded in {entry['upload_s']:.0f} s"
            yield _event(now_s, vm, CHECKPOINT_STORED, entry, text)
    yield from _failure(vm, status, last_epoch, now_s)


def _failure(vm: str, status: Mapping[str, Any], last_epoch: int, now_s: float) -> Iterable[Checkpoint]:
    """The last failure. Peers of earlier versions report its error only."""
    given = status.get("failed")
    if isinstance(given, Mapping) and isinstance(given.get("error"), str):
        given = {**given, "error": printable(given["error"])[:_LONGEST_TEXT] or "no reason was given"}
    failed, error = _entry(given, _FAILED), status.get("error")
    if failed is not None and failed["epoch"] <= last_epoch:
        key = f"failure {failed['count']}, of epoch {failed['epoch']}"
        data = json.dumps({"count": failed["count"], "of_epoch": failed["epoch"]})
        yield Checkpoint(now_s, vm, CHECKPOINT_FAILED, key, None, failed["error"], data)
    elif given is None and error and isinstance(error, str):
        text = printable(error)[:_LONGEST_TEXT]
        yield Checkpoint(now_s, vm, CHECKPOINT_FAILED, text, None, text, "{}")


def _event(now_s: float, vm: str, kind: str, entry: Mapping[str, Any], text: str) -> Checkpoint:
    return Checkpoint(now_s, vm, kind, entry["name"], entry["epoch"], printable(text), json.dumps(entry))


def _entry(entry: Any, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    """The known keys of an entry. None if one is absent or invalid."""
    if not isinstance(entry, Mapping):
        return None
    checks: Mapping[type, Callable[[Any], bool]] = {str: _is_text, int: _is_count, float: _is_number}
    if not all(checks[kind](entry.get(key)) for key, kind in kinds.items()):
        return None
    return {key: entry[key] for key in kinds}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable()


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf
