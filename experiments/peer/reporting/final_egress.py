"""egress.csv: bytes sent since the last published epoch record, shutdown traffic included.

Epoch records are published in the DHT. Bytes sent after the last one are written to this file, which the controller
collects together with the step log.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from pathlib import Path

from metrics.records import EgressRecord


class FinalEgress:
    """Difference between the meter and the records published so far. May be written several times."""

    def __init__(
        self,
        vm: str,
        path: Path,
        snapshot: Callable[[], dict[str, int]],
        clock: Callable[[], float] = time.monotonic,
        model_bytes: Callable[[], dict[str, int] | None] = lambda: None,
    ) -> None:
        """`snapshot`: IP bytes sent by destination since the meter's start; `model_bytes`: model bytes among them."""
        self._vm, self._path, self._snapshot, self._clock = vm, path, snapshot, clock
        self._epoch = 0
        self._since = clock()
        self._model_bytes = model_bytes
        self._published: dict[str, int] = {}
        self._published_model: dict[str, int] = {}

    def published(self, epoch: int, records: Iterable[EgressRecord]) -> None:
        """Subtract the published records of the epoch that just ended."""
        self._epoch, self._since = epoch, self._clock()
        for record in records:
            address = record.dst_address
            self._published[address] = self._published.get(address, 0) + record.bytes
            self._published_model[address] = self._published_model.get(address, 0) + (record.model_bytes or 0)

    def rows(self) -> list[EgressRecord]:
        """Read the meter. The phase is "leaving", or "joining" for a peer that completed no epoch."""
        phase = "leaving" if self._epoch else "joining"
        seconds = self._clock() - self._since
        left = {address: n - self._published.get(address, 0) for address, n in self._snapshot().items()}
        counted = self._model_bytes()
        model = {a: n - self._published_model.get(a, 0) for a, n in (counted or {}).items()}
        return [
            EgressRecord(
                self._vm,
                self._epoch,
                address,
                phase,
                seconds,
                count,
                None if counted is None else model.get(address, 0),
            )
            for address, count in sorted(left.items())
            if count > 0
        ]

    def write(self) -> None:
        """Replace the file with the current rows. Raises OSError (disk full) and what the meter raises."""
        rows = self.rows()
        temporary = self._path.with_name(f".{self._path.name}.new")
        with temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([field.name for field in fields(EgressRecord)])
            writer.writerows(astuple(row) for row in rows)
        temporary.replace(self._path)
