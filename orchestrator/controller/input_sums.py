"""Stores the sums of the peers' input traces (`data.trace`), from their status.json and, at the end, input_sums.jsonl."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cloud.provider import Observed
from experiments.pipeline.trace_sums import InputRow, row_key
from experiments.wire.input_sums import FILE, IN_STATUS, MAX_ROWS, from_json, table_of
from metrics.readable import few
from metrics.records import InputTraceRecord
from metrics.store.database import RunStore

_log = logging.getLogger("orchestrator.controller")
_TABLES = ("input_traces", "input_batches", "input_ops")
_LARGEST_BYTES = 64_000_000  # of an input_sums.jsonl; more than any run writes


class InputSums:
    """The sums of one run. A later one of the same VM, epoch and operation takes the place of an earlier one."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._known: dict[str, dict[tuple[type, int, str], InputRow]] = {}  # by VM
        for table in _TABLES:
            for row in store.records(table):
                self._known.setdefault(row.vm, {})[row_key(row)] = row
        self._invalid: set[str] = set()  # VMs whose invalid report was logged

    def write(self, seen: Iterable[Observed]) -> None:
        """Store what the provider's list has that is new. An invalid entry changes nothing. Raises StoreError."""
        self._store_rows(
            row
            for o in seen
            if isinstance(entries := o.status.get("input_sums"), list)
            for row in self._rows(o.vm, entries[-IN_STATUS:], "status.json")
        )

    def collect(self, folders: Mapping[str, Path]) -> list[str]:
        """Store what the VMs' files have that is new, and return warnings: unreadable files, VMs without sums.

        `folders`: by VM, those that could be collected. Raises StoreError.
        """
        warnings = list[str]()
        for vm, folder in folders.items():
            try:
                entries = _entries(folder / FILE)
            except (ValueError, OSError) as error:
                warnings.append(f"{FILE} of {vm} cannot be read and is skipped: {str(error)[:300]}")
                continue
            self._store_rows(self._rows(vm, entries, FILE))
        return warnings + self._incomplete()

    def _incomplete(self) -> list[str]:
        found = list[str]()
        traces = {row.vm: row for row in self._store.records("input_traces")}
        for vm, trace in traces.items():
            if trace.damaged:
                found.append(
                    f"The input trace of {vm} is incomplete, {trace.damaged} of {trace.files} files are damaged."
                )
            if trace.dropped:
                found.append(
                    f"The input trace of {vm} lacks {trace.dropped:,} events, which full buffers did not hold: its input "
                    "times are those of the recorded part."
                )
        traced = (self._store.run_meta().document.get("data") or {}).get("trace", "off") != "off"
        trained = dict.fromkeys(row.vm for row in self._store.records("epochs")) if traced else {}
        silent = [vm for vm in trained if vm not in traces]
        if silent:
            found.append(f"The input times of {few(silent)} are unknown: no sums of a trace arrived.")
        return found

    def _rows(self, vm: str, entries: Iterable[Any], where: str) -> Iterable[InputRow]:
        for entry in entries:
            row = from_json(vm, entry)
            if row is not None:
                yield row
            elif vm not in self._invalid:
                self._invalid.add(vm)
                _log.warning("%s: invalid sums of its trace in its %s: %s", vm, where, repr(entry)[:500])

    def _store_rows(self, rows: Iterable[InputRow]) -> None:
        fresh: dict[str, list[InputRow]] = {}
        for row in rows:
            known, key = self._known.setdefault(row.vm, {}), row_key(row)
            before = known.get(key)
            if len(known) < MAX_ROWS if before is None else before != row and _count(before) <= _count(row):
                known[key] = row
                fresh.setdefault(table_of(row), []).append(row)
        if fresh:
            with self._store.transaction():
                for table, found in fresh.items():
                    self._store.upsert(table, found)


def _count(row: InputRow) -> int:
    """What only grows: of two sums of the same, the later one has no fewer."""
    return row.files if isinstance(row, InputTraceRecord) else row.n


def _entries(path: Path) -> list[Any]:
    """The entries of a VM's file, without a last line cut off by the VM's end. [] if there is none. Raises ValueError."""
    if not path.is_file():
        return []
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError(f"{path}: more than {_LARGEST_BYTES} bytes")
    lines = path.read_text("utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        return [json.loads(line) for line in lines]
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply") from error
