"""coverage.csv: which samples this peer used, as intervals; the newest rows are also reported in status.json."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from experiments.peer.training.loader import Span
from experiments.wire.coverage import IN_STATUS, MAX_ROWS, to_json
from metrics.records import COVERAGE_END, COVERAGE_SIZE, COVERAGE_USED, CoverageRecord


class CoverageLog:
    """Collects the samples of accelerator steps and writes them as rows when asked to. For one thread."""

    def __init__(
        self, path: Path, vm: str, shards: Sequence[str], sizes: Callable[[], Mapping[str, int]]
    ) -> None:
        """`shards`: all of the experiment. `sizes`: number of samples by shard, of those read to their end.

        Raises OSError (disk full), as all methods that write.
        """
        self._vm, self._sizes = vm, sizes
        self._shards = {shard: number for number, shard in enumerate(sorted(set(shards)))}
        self._pending: list[Span] = []
        self._sized: set[str] = set()
        self._number = 0
        self._newest: deque[list[Any]] = deque(maxlen=IN_STATUS)
        self._path = path
        self._unwritten: list[CoverageRecord] = []
        path.write_text(",".join(field.name for field in fields(CoverageRecord)) + "\n")

    def used(self, spans: Iterable[Span]) -> None:
        """Add the samples of a batch whose accelerator steps have ended. They are written with the next `report`."""
        for span in spans:
            last = self._pending[-1] if self._pending else None
            if last is not None and (last.pass_number, last.shard, last.end) == (
                span.pass_number,
                span.shard,
                span.first,
            ):
                self._pending[-1] = replace(last, end=span.end)
            else:
                self._pending.append(span)

    def report(self) -> list[list[Any]]:
        """Write what was used since the last report. Returns the newest rows, as in status.json."""
        self._add_used()
        return self._written()

    def end(self) -> list[list[Any]]:
        """Write the last report. Returns the newest rows, as in status.json."""
        self._add_used()
        self._add(COVERAGE_END, 0, 0, 0, 0)
        return self._written()

    def _add_used(self) -> None:
        for span in self._pending:
            if (shard := self._shards.get(span.shard)) is not None:
                self._add(COVERAGE_USED, span.pass_number, shard, span.first, span.end)
        self._pending = []
        for name, samples in self._sizes().items():
            if name not in self._sized and name in self._shards:
                self._sized.add(name)
                self._add(COVERAGE_SIZE, 0, self._shards[name], 0, samples)

    def _add(self, what: str, pass_number: int, shard: int, first: int, end: int) -> None:
        if self._number >= MAX_ROWS:  # the controller reads no more; what follows is unknown to it
            return
        row = CoverageRecord(self._vm, self._number, what, pass_number, shard, first, end)
        self._number += 1
        self._unwritten.append(row)
        self._newest.append(to_json(row))

    def _written(self) -> list[list[Any]]:
        if self._unwritten:
            with self._path.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(astuple(row) for row in self._unwritten)
            self._unwritten = []
        return list(self._newest)
