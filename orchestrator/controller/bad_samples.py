"""Keeps, by VM, how many bad samples its peer left out (meta's `bad_samples`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cloud.provider import Observed
from metrics.store.database import RunStore

DATA = ("training", "heldout")
_LONGEST_TEXT = 500
_EMPTY = {"count": 0, "first": ""}


class BadSamples:
    """The counts of one run. A VM has an entry once its peer has reported, with counts of 0 as long as all is well."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._known: dict[str, Any] = dict(store.meta("bad_samples") or {})

    def write(self, seen: Iterable[Observed]) -> None:
        """Store what the provider's list has that is new. An invalid report changes nothing. Raises StoreError."""
        fresh = {o.vm: counts for o in seen if (counts := counts_of(o.status.get("bad_samples"))) is not None}
        if any(self._known.get(vm) != counts for vm, counts in fresh.items()):
            self._known = {**self._known, **fresh}
            self._store.set_meta("bad_samples", self._known)


def counts_of(entry: Any) -> dict[str, dict[str, Any]] | None:
    """The counts of a status.json, {"count", "first"} by "training" and "heldout"; None if they are absent or invalid."""
    if not isinstance(entry, Mapping):
        return None
    found = {data: entry.get(data, _EMPTY) for data in DATA}
    return {data: _count(one) for data, one in found.items()} if all(map(_is_count, found.values())) else None


def _is_count(one: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and type(one.get("count")) is int
        and 0 <= one["count"] < 2**63
        and isinstance(one.get("first"), str)
    )


def _count(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"count": one["count"], "first": one["first"][:_LONGEST_TEXT]}
