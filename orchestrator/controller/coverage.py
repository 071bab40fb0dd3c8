"""Stores which samples each VM used, from its status.json while it runs and from its coverage.csv at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from cloud.provider import Observed
from experiments.wire.coverage import IN_STATUS, from_json
from metrics.records import CoverageRecord
from metrics.store.database import RunStore

_log = logging.getLogger("orchestrator.controller")


class Coverage:
    """The table `coverage` of one run. A row's number is its key, so a VM cannot add more than `MAX_ROWS` rows."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._shards = int(store.meta("training_shards") or 0)  # 0: a run of before these reports
        self._known: dict[str, int] = {}  # by VM: its largest number
        for row in store.records("coverage"):
            self._known[row.vm] = max(row.number, self._known.get(row.vm, -1))
        self._invalid: set[str] = set()  # VMs whose invalid report was logged

    def write(self, seen: Iterable[Observed]) -> None:
        """Append what the provider's list has that is new. An invalid row changes nothing. Raises StoreError."""
        if not self._shards:
            return
        fresh: list[CoverageRecord] = []
        for o in seen:
            entries = o.status.get("coverage")
            if not isinstance(entries, list):
                continue
            for entry in entries[-IN_STATUS:]:
                row = from_json(o.vm, entry, self._shards)
                if row is None:
                    if o.vm not in self._invalid:
                        self._invalid.add(o.vm)
                        _log.warning("%s: invalid coverage in its status.json: %s", o.vm, repr(entry)[:500])
                elif row.number > self._known.get(o.vm, -1):
                    self._known[o.vm] = row.number
                    fresh.append(row)
        if fresh:
            self._store.append("coverage", fresh)
