"""Stores how busy each VM is, from its status.json while it runs and from its utilisation.csv at the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from cloud.provider import Observed
from metrics.records import UtilisationRecord
from metrics.store.database import RunStore

_log = logging.getLogger("orchestrator.controller")
_MOST = 10  # summaries taken from one status.json
_SHARES = ("cpu_mean", "cpu_peak", "gpu_mean", "gpu_peak")
_SCOPES = ("vm", "peer")
_KINDS = {
    name: next(kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
    for name, hint in get_type_hints(UtilisationRecord).items()
}
_OPTIONAL = {f.name for f in fields(UtilisationRecord) if f.default is not MISSING}


class Utilisation:
    """The table `utilisation` of one run."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._until_s: dict[str, float] = {}  # by VM: when its newest summary began
        for row in store.records("utilisation"):
            self._until_s[row.vm] = max(row.began_s, self._until_s.get(row.vm, 0.0))
        self._invalid: set[str] = set()  # VMs whose invalid report was logged

    def write(self, seen: Iterable[Observed]) -> None:
        """Append what the provider's list has that is new. Raises StoreError."""
        fresh: list[UtilisationRecord] = []
        for o in seen:
            entries = o.status.get("utilisation")
            if not isinstance(entries, list):
                continue
            for entry in entries[-_MOST:]:
                row = utilisation_of(o.vm, entry)
                if row is None:
                    self._report(o.vm, entry)
                elif row.began_s > self._until_s.get(o.vm, 0.0):
                    self._until_s[o.vm] = row.began_s
                    fresh.append(row)
        if fresh:
            self._store.append("utilisation", fresh)

    def _report(self, vm: str, entry: Any) -> None:
        if vm not in self._invalid:
            self._invalid.add(vm)
            _log.warning("%s: invalid utilisation in its status.json: %s", vm, repr(entry)[:500])


def utilisation_of(vm: str, entry: Any) -> UtilisationRecord | None:
    """A summary of a status.json; None if it is invalid. A missing value is unknown."""
    if not isinstance(entry, dict) or not set(entry) <= set(_KINDS) - {"vm"}:
        return None
    values: dict[str, Any] = {"vm": vm}
    for name, value in entry.items():
        if value is None and name in _OPTIONAL:
            continue
        kind = _KINDS[name]
        if type(value) is not kind and not (kind is float and type(value) is int):
            return None
        values[name] = float(value) if kind is float and value is not None else value
    if any(name not in values for name in _KINDS if name not in _OPTIONAL):
        return None
    row = UtilisationRecord(**values)
    return row if is_plausible(row) else None


def is_plausible(row: UtilisationRecord) -> bool:
    """Whether a row has only values that a peer could have measured."""
    numbers = [value for name in _KINDS if isinstance(value := getattr(row, name), (int, float))]
    return (
        all(0 <= value < 2**63 and math.isfinite(value) for value in numbers)
        and all((getattr(row, name) or 0.0) <= 1.0 for name in _SHARES)
        and row.scope in _SCOPES
        and 0.1 <= row.wall_s <= 3600
        and row.began_s < 1e11
        and row.cores > 0
    )
