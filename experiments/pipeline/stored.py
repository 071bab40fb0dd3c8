"""Stored prefixes: how many operations may be run once and stored, the key of what is stored, what differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from experiments.pipeline.errors import PipelineError
from experiments.pipeline.pipeline import Pipeline

_FORMAT = 1


def storable(pipeline: Pipeline) -> int:
    """Return how many of the first operations may be stored: all before the first random one.

    What is stored is always the result of a prefix, so no operation after a random one can be part of it.
    """
    return next((at for at, op in enumerate(pipeline.ops) if op.random), len(pipeline.ops))


def check_storable(pipeline: Pipeline, ops: int) -> None:
    """Raise PipelineError if the result of the first `ops` operations must not be stored."""
    if not 0 <= ops <= len(pipeline.ops):
        raise PipelineError(
            f"pipeline {pipeline.name} has {len(pipeline.ops)} operations, so the first {ops} of them cannot be stored; "
            f"use 0 to {storable(pipeline)}"
        )
    most = storable(pipeline)
    if ops > most:
        before = ", ".join(op.name for op in pipeline.ops[:most]) or "none"
        raise PipelineError(
            f"pipeline {pipeline.name}: operation {pipeline.ops[most].name} is random, so only the operations before it "
            f"({before}) may be stored: a stored random op is random no more, and accuracy falls; "
            f"store the first {most} or fewer, not {ops}"
        )


def stored_key(pipeline: Pipeline, ops: int) -> str:
    """Return the key of shards that hold the result of the first `ops` operations: their fingerprint.

    Raises PipelineError if it must not be stored.
    """
    check_storable(pipeline, ops)
    return pipeline.fingerprint(ops)


def stored_declaration(pipeline: Pipeline, ops: int) -> dict[str, Any]:
    """Return in JSON types what the manifest of stored shards says of their pipeline.

    {"format", "fingerprint", "fields", "ops"}: the fingerprint's declaration, with "source_sha256" in place of an
    operation's source. Raises PipelineError if it must not be stored.
    """
    key = stored_key(pipeline, ops)
    declared = pipeline.declaration(ops)
    return {
        "format": _FORMAT,
        "fingerprint": key,
        "fields": declared["fields"],
        "ops": [_with_hash(op) for op in declared["ops"]],
    }


def check_same_pipeline(stored: Mapping[str, Any], pipeline: Pipeline, ops: int) -> None:
    """Raise PipelineError, naming what differs, if shards with the declaration `stored` are not of this pipeline's first
    `ops` operations. A declaration that cannot be read is refused too."""
    wanted = stored_declaration(pipeline, ops)
    if stored.get("fingerprint") == wanted["fingerprint"]:
        return
    raise PipelineError(
        f"the stored shards are not of the first {ops} operations of pipeline {pipeline.name}: "
        f"{'; '.join(differences(stored, wanted))}; store them again, or go back to the pipeline that they were stored with"
    )


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Name what differs between two declarations of `stored_declaration`, one part of a sentence for each."""
    if stored.get("format") != wanted["format"] or not _is_declaration(stored):
        return ["what they say of their pipeline cannot be read by this version of orch"]
    found: list[str] = []
    if stored["fields"] != wanted["fields"]:
        found.append(f"their fields are {_shown(stored['fields'])}, now {_shown(wanted['fields'])}")
    had, has = ([op["name"] for op in declared["ops"]] for declared in (stored, wanted))
    if had != has:
        return [
            *found,
            f"their operations are {', '.join(had) or 'none'}, now they are {', '.join(has) or 'none'}",
        ]
    for old, new in zip(stored["ops"], wanted["ops"], strict=True):
        for part in sorted(old.keys() | new.keys()):
            found += _changes(f"operation {new['name']}: {part}", old.get(part), new.get(part))
    return found or ["their fingerprint is another one"]


def _changes(what: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if what.endswith(": source_sha256"):
        return [f"{what.removesuffix('_sha256')} was changed"]
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        return [
            change for name in names for change in _changes(f"{what} {name}", old.get(name), new.get(name))
        ]
    return [f"{what} was {_shown(old)}, now {_shown(new)}"]


def _shown(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_declaration(stored: Mapping[str, Any]) -> bool:
    ops = stored.get("ops")
    return (
        isinstance(stored.get("fields"), dict)
        and isinstance(ops, list)
        and all(isinstance(op, dict) and isinstance(op.get("name"), str) for op in ops)
    )


def _with_hash(op: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in op.items() if name != "source"}
    return {**rest, "source_sha256": sha256(op["source"].encode("utf-8")).hexdigest()}
