"""Traces as tables and Parquet files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from analysis.pipeline.records import BatchRecord, OpRecord, PhaseRecord, Thread, Trace
from analysis.pipeline.tables import tables, write_parquet

START = 1_795_832_103_184_451_607  # not exact as a double
TRACE = Trace(
    (OpRecord("a", 10, 11, "decode", 4, None, START, 20, 15, 600),),
    (BatchRecord("a", 0), BatchRecord("a", 1, fetch_start_ns=START, fetch_ns=5)),
    (PhaseRecord("a", 1, 1, "forward", START, 30),),
    (Thread("a", 1, 1, "MainThread", 2),),
)


def test_tables_hold_the_records_exactly():
    found = tables(TRACE)
    assert found["ops"].to_pylist() == [
        {
            **{"vm": "a", "pid": 10, "tid": 11, "op": "decode", "sample": 4, "batch": None},
            **{"start_ns": START, "wall_ns": 20, "cpu_ns": 15, "bytes_out": 600},
        }
    ]
    assert found["batches"].column("ready_ns").to_pylist() == [None, START + 5]
    assert found["phases"].column("name").to_pylist() == ["forward"]
    assert found["threads"].column("dropped").to_pylist() == [2]


def test_an_empty_trace_has_typed_columns():
    assert {table.num_rows for table in tables(Trace()).values()} == {0}
    assert tables(Trace())["batches"].schema.field("wait_ns").type == pa.int64()


def test_parquet_files_are_the_tables(tmp_path: Path):
    written = write_parquet(TRACE, tmp_path / "new")
    assert [file.name for file in written] == [
        *("ops.parquet", "batches.parquet", "phases.parquet", "threads.parquet")
    ]
    frame = pd.read_parquet(written[0], dtype_backend="pyarrow")
    assert frame["start_ns"].tolist() == [START]
