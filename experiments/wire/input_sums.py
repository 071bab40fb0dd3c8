"""Sums of a peer's input trace, as lines of its input_sums.jsonl and, the newest ones, in its status.json.

An entry is a list: the table's name, and the record's fields without the VM. A later entry of the same epoch and operation
takes the place of an earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from cloud.vm_report import printable
from experiments.pipeline.trace_sums import InputRow
from metrics.records import NO_EPOCH, InputBatchRecord, InputOpRecord, InputTraceRecord

FILE = "input_sums.jsonl"
IN_STATUS = 60
"""Entries in a status.json, of some 70 bytes each; earlier ones are in the file."""
MAX_ROWS = 100_000
"""Of a VM, after replacement."""
_LONGEST_NAME = 2000
_KINDS: dict[str, type[InputRow]] = {
    "input_ops": InputOpRecord,
    "input_batches": InputBatchRecord,
    "input_traces": InputTraceRecord,
}
_TABLES = {kind: table for table, kind in _KINDS.items()}


def table_of(row: InputRow) -> str:
    """Return the name of the table of run.db that has rows like this one."""
    return _TABLES[type(row)]


def to_json(row: InputRow) -> list[Any]:
    """Return an entry."""
    return [table_of(row), *astuple(row)[1:]]


def from_json(vm: str, entry: Any) -> InputRow | None:
    """Parse what `to_json` returned; None if it is anything else."""
    if not isinstance(entry, Sequence) or isinstance(entry, str) or not entry:
        return None
    kind = _KINDS.get(entry[0]) if isinstance(entry[0], str) else None
    if kind is None:
        return None
    names, hints = [field.name for field in fields(kind)][1:], get_type_hints(kind)
    if len(entry) != 1 + len(names):
        return None
    values: dict[str, Any] = {}
    for name, value in zip(names, entry[1:], strict=True):
        kinds = get_args(hints[name]) or (hints[name],)
        if float in kinds and type(value) is int:
            value = float(value)
        if type(value) not in kinds or not _is_plausible(name, value):
            return None
        values[name] = printable(value) if isinstance(value, str) else value
    return kind(vm, **values)


def _is_plausible(name: str, value: Any) -> bool:
    match value:
        case str():
            return 0 < len(value) <= _LONGEST_NAME
        case int() | float():
            lowest = NO_EPOCH if name == "epoch" else 0
            # The difference of two clocks, and so below 0 at times.
            lowest = -math.inf if name == "delay_s" else lowest
            return math.isfinite(value) and lowest <= value < 2**63
        case _:
            return isinstance(value, NoneType)
