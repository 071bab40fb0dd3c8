"""Writes down, once for each VM, what its peer says of how it came to train."""

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
        """Append what is new in the provider's list. Raises StoreError."""
        for o in seen:
            said = o.status.get("join")
            if said is None or o.vm in self._known:
                continue
            self._known.add(o.vm)  # a record that is none is looked at once
            record = join_of(o.vm, said)
            if record is None:
                _log.warning("%s: its status.json says of its joining what cannot be: %r", o.vm, said)
            else:
                self._store.append("joins", [record])


def join_of(vm: str, said: Any) -> JoinRecord | None:
    """The record in a status.json; None when it is none, or another VM's."""
    if not isinstance(said, dict) or set(said) != set(JoinRecord.__slots__) or said["vm"] != vm:
        return None
    times = (said["at_s"], said["state_s"])
    counts = (said["from_epoch"], 0 if said["state_bytes"] is None else said["state_bytes"])
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in times):
        return None
    if not all(type(value) is int and 0 <= value < 2**63 for value in counts):
        return None
    donor, resumed = said["donor"], said["resumed"]
    if not (donor is None or (isinstance(donor, str) and len(donor) <= _LONGEST_NAME)):
        return None
    if not (resumed is None or (type(resumed) is int and 0 <= resumed < 2**63)):
        return None
    return JoinRecord(
        vm, float(times[0]), float(times[1]), said["state_bytes"], said["from_epoch"], donor, resumed
    )
