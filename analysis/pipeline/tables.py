"""A trace as tables, and as Parquet files: one of operations, one of batches, one of phases, one of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from analysis.pipeline.records import BatchRecord, OpRecord, PhaseRecord, Thread, Trace

_KINDS: Mapping[str, type] = {
    "ops": OpRecord,
    "batches": BatchRecord,
    "phases": PhaseRecord,
    "threads": Thread,
}
_DERIVED = {"batches": ("ready_ns", "preprocess_ns", "consumed_start_ns", "delay_ns")}
_TEXTS = ("vm", "op", "name")


def tables(trace: Trace) -> dict[str, pa.Table]:
    """The tables by name. Columns are the records' fields; numbers are int64, and null where they are unknown."""
    return {
        kind: _table(getattr(trace, kind), (*(f.name for f in fields(record)), *_DERIVED.get(kind, ())))
        for kind, record in _KINDS.items()
    }


def write_parquet(trace: Trace, folder: Path) -> list[Path]:
    """Write ops.parquet, batches.parquet, phases.parquet and threads.parquet. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables(trace).items():
        parquet.write_table(table, folder / f"{name}.parquet")
        written.append(folder / f"{name}.parquet")
    return written


def _table(records: Sequence[Any], columns: Sequence[str]) -> pa.Table:
    return pa.table(
        {
            column: pa.array(
                [getattr(record, column) for record in records],
                pa.string() if column in _TEXTS else pa.int64(),
            )
            for column in columns
        }
    )
