"""Ingests monitor.jsonl into the run store: rows and offset in one transaction, so that a kill loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from metrics.records import EgressRecord, EpochRecord, IngressRecord, ProgressRecord
from metrics.store.database import RunStore
from orchestrator.core.observations import FRESH_S

_CHUNK_BYTES = 4_000_000

# Reads up to a number of bytes of the log from an offset; None: there is no log yet.
Source = Callable[[int, int], bytes | None]


class MonitorTail:
    """Reads what the monitor appended since the last read."""

    def __init__(self, store: RunStore, path: Path, source: Source | None = None) -> None:
        """`source`: replaces reading the file `path` (for simulations)."""
        self._store = store
        self._path = path
        self._source = source or self._read_file
        self._caught_up = False  # the next lines were written just now
        self._shift_s = 0.0  # from the monitor's clock to the controller's
        self.epochs_read = 0  # epochs and evaluations that this process has ingested
        self.swarm_at_s = 0.0  # time of the newest list of peers in the DHT
        self.swarm_since_s = 0.0  # time of the first list since the last gap, or since the controller started
        self.last_seen_s: dict[str, float] = {}

    def read(self, now_s: float) -> int:
        """Ingest all new complete lines (at most 4 MB); returns their number.

        `now_s`: time of the controller's monotonic run clock. `last_seen_s` uses that clock; rows keep their
        original times.
        """
        offset = self._store.tail_offset(self._path.name)
        chunk = self._source(offset, _CHUNK_BYTES)
        if chunk is None:
            self._caught_up = True
            return 0
        end = chunk.rfind(b"\n") + 1  # the last line may be incomplete
        entries = [_parsed(line) for line in chunk[:end].splitlines()]
        if entries and self._caught_up:
            newest_s = _newest_s(entries)
            self._shift_s = self._shift_s if newest_s is None else now_s - newest_s
        self._caught_up = len(chunk) < _CHUNK_BYTES
        if entries:
            with self._store.transaction():
                self._ingest(entries)
                self._store.set_tail_offset(self._path.name, offset + end)
        return len(entries)

    def _read_file(self, offset: int, most_bytes: int) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                return file.read(most_bytes)
        except FileNotFoundError:
            return None

    def _ingest(self, entries: list[Any]) -> None:
        rows: dict[str, list[Any]] = {"progress": [], "epochs": [], "egress": [], "ingress": []}
        evaluations: list[Mapping[str, Any]] = []
        rejected: dict[str, int] = {}
        unread = 0
        for entry in entries:
            try:
                self._add_entry(entry, rows, evaluations, rejected)
            except (ValueError, KeyError, TypeError, AttributeError):
                unread += 1  # of another version, or truncated: counted and reported
        for table, found in rows.items():
            self._store.append(table, found)
        self.epochs_read += len(rows["epochs"]) + len(evaluations)
        if evaluations:
            self._store.set_meta("evaluations", [*self._store.meta("evaluations", []), *evaluations])
        if rejected:
            self._store.set_meta("rejected", self._store.meta("rejected", {}) | rejected)
        if unread:
            self._store.set_meta("monitor_unread_lines", self._store.meta("monitor_unread_lines", 0) + unread)

    def _add_entry(
        self,
        entry: dict[str, Any],
        rows: dict[str, list[Any]],
        evaluations: list[Mapping[str, Any]],
        rejected: dict[str, int],
    ) -> None:
        match entry["kind"]:
            case "progress":
                rows["progress"].append(_record(ProgressRecord, entry))
            case "epoch":
                epoch = _record(EpochRecord, entry["epoch"])
                egress = [_record(EgressRecord, e) for e in entry.get("egress") or []]
                ingress = [_record(IngressRecord, entry["ingress"])] if entry.get("ingress") else []
                rows["epochs"].append(epoch)
                rows["egress"] += egress
                rows["ingress"] += ingress
            case "evaluation":
                evaluations.append({k: v for k, v in entry.items() if k != "kind"})
            case "rejected":
                rejected[f"{entry['reason']}"] = int(entry["count"])
            case "swarm":
                at_s = float(entry["at_s"]) + self._shift_s
                if at_s - self.swarm_at_s > FRESH_S:
                    self.swarm_since_s = at_s
                self.swarm_at_s = max(self.swarm_at_s, at_s)
                for vm in map(str, entry["alive"]):
                    if self.last_seen_s.get(vm, 0.0) < at_s:
                        self.last_seen_s[vm] = at_s
            case _:
                raise ValueError(entry["kind"])


def _parsed(line: bytes) -> Any:
    """The line's JSON value; None if it has none, which is no valid entry either."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _newest_s(entries: list[Any]) -> float | None:
    """Time of the last list of peers in the DHT, by the monitor's clock."""
    for entry in reversed(entries):
        try:
            if entry["kind"] == "swarm":
                return float(entry["at_s"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _record(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    """Build a record from a line. Raises ValueError for an integer that the store cannot hold, KeyError."""
    values = {f.name: entry[f.name] for f in fields(kind)}
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values.values()):
        raise ValueError(f"{kind.__name__} with an integer of over 63 bits")
    return kind(**values)
