"""egress.csv: what this VM sent that no epoch's record tells of, written as it leaves.

The records of the epochs go through the DHT. What is sent after the last of them, the goodbye included,
cannot: it is this VM's own last reading, collected with the step log.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from pathlib import Path

from metrics.records import EgressRecord


class Untold:
    """The difference between the meter and the records published so far. Safe to write several times."""

    def __init__(
        self,
        vm: str,
        path: Path,
        snapshot: Callable[[], dict[str, int]],
        clock: Callable[[], float] = time.monotonic,
        handed: Callable[[], dict[str, int] | None] = lambda: None,
    ) -> None:
        """`snapshot`: IP bytes sent by destination, counted from the meter's start; `handed`: of them the model's."""
        self._vm, self._path, self._snapshot, self._clock = vm, path, snapshot, clock
        self._epoch = 0
        self._since = clock()
        self._handed = handed
        self._told: dict[str, int] = {}
        self._told_model: dict[str, int] = {}

    def told(self, epoch: int, records: Iterable[EgressRecord]) -> None:
        """These records of the epoch that just ended were published."""
        self._epoch, self._since = epoch, self._clock()
        for record in records:
            address = record.dst_address
            self._told[address] = self._told.get(address, 0) + record.bytes
            self._told_model[address] = self._told_model.get(address, 0) + (record.model_bytes or 0)

    def rows(self) -> list[EgressRecord]:
        """Read the meter now. Phase "leaving", or "joining" for a peer that ended no epoch."""
        phase = "leaving" if self._epoch else "joining"
        seconds = self._clock() - self._since
        left = {address: n - self._told.get(address, 0) for address, n in self._snapshot().items()}
        handed = self._handed()
        model = {a: n - self._told_model.get(a, 0) for a, n in (handed or {}).items()}
        return [
            EgressRecord(
                self._vm,
                self._epoch,
                address,
                phase,
                seconds,
                count,
                None if handed is None else model.get(address, 0),
            )
            for address, count in sorted(left.items())
            if count > 0
        ]

    def write(self) -> None:
        """Replace the file with what is untold now. Raises OSError (disk full) and what the meter raises."""
        rows = self.rows()
        temporary = self._path.with_name(f".{self._path.name}.new")
        with temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([field.name for field in fields(EgressRecord)])
            writer.writerows(astuple(row) for row in rows)
        temporary.replace(self._path)
