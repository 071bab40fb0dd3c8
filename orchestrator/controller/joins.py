"""Records, once per VM, how its peer joined the swarm."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

from cloud.provider import Observed
from metrics.records import JoinRecord
from metrics.store.database import RunStore

_LONGEST_NAME = 200
_log = logging.getLogger("orchestrator.controller")


class Joins:
    """The table `joins` of one run."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._known = {row.vm for row in store.records("joins")}

    def write(self, seen: Iterable[Observed]) -> None:
        """Append new join records from the provider's list. Raises StoreError."""
        for o in seen:
            entry = o.status.get("join")
            if entry is None or o.vm in self._known:
                continue
            self._known.add(o.vm)  # an invalid record is reported once
            record = join_of(o.vm, entry)
            if record is None:
                _log.warning("%s: invalid join record in its status.json: %r", o.vm, entry)
            else:
                self._store.append("joins", [record])


def join_of(vm: str, entry: Any) -> JoinRecord | None:
    """The join record of a status.json; None if it is invalid or of another VM."""
    if not isinstance(entry, dict) or set(entry) != set(JoinRecord.__slots__) or entry["vm"] != vm:
        return None
    times = (entry["at_s"], entry["state_s"])
    counts = (entry["from_epoch"], 0 if entry["state_bytes"] is None else entry["state_bytes"])
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in times):
        return None
    if not all(type(value) is int and 0 <= value < 2**63 for value in counts):
        return None
    donor, resumed = entry["donor"], entry["resumed"]
    if not (donor is None or (isinstance(donor, str) and len(donor) <= _LONGEST_NAME)):
        return None
    if not (resumed is None or (type(resumed) is int and 0 <= resumed < 2**63)):
        return None
    return JoinRecord(
        vm, float(times[0]), float(times[1]), entry["state_bytes"], entry["from_epoch"], donor, resumed
    )
