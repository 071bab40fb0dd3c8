"""The run store: one writer, no row twice, nothing lost, one sentence when it cannot."""

import json
import sqlite3
from dataclasses import replace
from decimal import Decimal

import pytest

from metrics.records import (
    TABLES,
    EgressRecord,
    EpochRecord,
    EventRecord,
    InputBatchRecord,
    InputOpRecord,
    InputTraceRecord,
    ProgressRecord,
    UtilisationRecord,
    VmRecord,
)
from metrics.store.database import (
    SCHEMA_VERSION,
    DiskFullError,
    FencedError,
    RunStore,
    SchemaError,
    StoreError,
)

VM = VmRecord(
    vm="r-a0-0",
    slot="a0",
    generation=0,
    location="gcp/us-central1/us-central1-a",
    instance="n1-standard-8",
    accelerator="T4:1",
    use_spot=True,
    usd_per_h=Decimal("0.1800"),
    price_source="study-2023-04",
    address="10.0.0.2",
    requested_s=1.5,
    ready_s=None,
    ended_s=None,
    end_cause="",
)
EPOCH = EpochRecord(
    "r-a0-0", 1, 0.0, 9.0, 3, 30, 1.0, 0.0, 1.0, 2.0, 0.1, 4.0, 0.0, 5.0, 4.0, 2.3, 2, "", "digits"
)


def event(seq: int) -> EventRecord:
    return EventRecord(seq, float(seq), "intent", "a0", 0, "r-a0-0", "waiting", "provisioning", "test", "{}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run-1" / "run.db"


def test_a_later_row_takes_the_place_of_an_earlier_one(path):
    first, other = (
        InputOpRecord("a", 1, "decode", 1, 0.5, 0.1, 9),
        InputOpRecord("a", 1, "crop", 1, 0.5, 0.1, 9),
    )
    later = replace(first, n=2, wall_s=1.5, cpu_s=None)
    with RunStore.open_writer(path) as store:
        store.upsert("input_ops", [first, other])
        store.upsert("input_ops", [later])
        store.upsert("input_traces", [InputTraceRecord("a", 1, 0, 0), InputTraceRecord("a", 2, 0, 0)])
        assert store.records("input_ops") == [later, other]
        assert store.records("input_traces") == [InputTraceRecord("a", 2, 0, 0)]


def test_records_come_back_as_they_went_in(path):
    with RunStore.open_writer(path) as store:
        store.upsert_vm(VM)
        store.upsert_vm(replace(VM, ready_s=3.0))
        store.append("epochs", [EPOCH])
        store.append("events", [event(0), event(1)])
        store.set_meta("scales", {"bytes": 40, "usd": Decimal("1.20")})
    with RunStore.open_reader(path) as reader:
        assert reader.records("vms") == [replace(VM, ready_s=3.0)]
        assert reader.records("epochs") == [EPOCH]
        assert reader.records("events", after=0) == [event(1)]
        assert reader.meta("scales") == {"bytes": 40, "usd": "1.20"}
        assert reader.meta("nothing") is None
        assert reader.all_meta() == {"scales": {"bytes": 40, "usd": "1.20"}}


def test_frames_have_the_records_columns_and_types(path):
    with RunStore.open_writer(path) as store:
        store.upsert_vm(VM)
        frame = store.frame("vms")
        assert list(frame.columns) == list(VmRecord.__slots__)
        assert frame["ready_s"].isna().all()
        assert frame["usd_per_h"][0] == Decimal("0.1800")
        for table in TABLES:
            assert store.frame(table) is not None
        assert store.frame("epochs")["calc_s"].dtype == "float64"


def test_duplicate_row_is_stored_once(path):
    row = ProgressRecord(1.0, "", 3, 100, 20.0, 2, None)
    with RunStore.open_writer(path) as store:
        assert store.append("progress", [row, row]) == 1
        assert store.append("progress", [row]) == 0
        assert store.append("epochs", [EPOCH, EPOCH]) == 1
        assert store.records("progress") == [row]


def test_duplicate_journal_entry_is_an_error(path):
    with RunStore.open_writer(path) as store:
        store.append("events", [event(0)])
        with pytest.raises(StoreError, match="UNIQUE"):
            store.append("events", [event(0)])


def test_a_transaction_is_all_or_nothing(path):
    with RunStore.open_writer(path) as store:

        def dies_half_way() -> None:
            with store.transaction():
                store.append("epochs", [EPOCH])
                store.set_tail_offset("monitor.jsonl", 100)
                raise RuntimeError("the controller dies here")

        with pytest.raises(RuntimeError):
            dies_half_way()
        assert store.records("epochs") == []
        assert store.tail_offset("monitor.jsonl") == 0
        with store.transaction():
            store.append("epochs", [EPOCH])
            store.set_tail_offset("monitor.jsonl", 100)
        assert store.tail_offset("monitor.jsonl") == 100


def test_second_writer_is_refused_until_the_first_has_ended(path):
    first = RunStore.open_writer(path)
    with pytest.raises(FencedError, match="run-1: another controller"):
        RunStore.open_writer(path)
    first.close()
    with RunStore.open_writer(path) as second:
        second.append("events", [event(0)])


def test_writer_that_lost_its_lock_cannot_write(path):
    first = RunStore.open_writer(path)
    path.with_name("run.lock").unlink()  # somebody cleaned up: the lock no longer excludes anybody
    with RunStore.open_writer(path) as second:
        with pytest.raises(FencedError, match="newer controller"):
            first.append("events", [event(0)])
        second.append("events", [event(0)])
        assert len(second.records("events")) == 1
    first.close()


def test_newer_schema_is_reported_in_one_sentence(path):
    RunStore.open_writer(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    for opener in (RunStore.open_reader, RunStore.open_writer):
        with pytest.raises(SchemaError, match="newer orch"):
            opener(path)


def test_missing_run_is_reported_in_one_sentence(path):
    with pytest.raises(StoreError, match="no such run"):
        RunStore.open_reader(path)
    path.parent.mkdir()
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    for opener in (RunStore.open_reader, RunStore.open_writer):
        with pytest.raises(SchemaError, match="not a run's database"):
            opener(path)


def test_full_disk_is_reported_in_one_sentence_and_loses_no_written_row(path):
    with RunStore.open_writer(path) as store:
        store.append("events", [event(0)])
        store._connection.execute("PRAGMA max_page_count = 1")  # SQLite's own SQLITE_FULL, as on a full disk
        rows = [replace(event(n), data_json=json.dumps("x" * 4000)) for n in range(1, 50)]
        with pytest.raises(DiskFullError, match="no space left"):
            store.append("events", rows)
        assert store.records("events") == [event(0)]
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.append("events", rows)
        assert len(store.records("events")) == 50


def test_a_reader_cannot_write(path):
    RunStore.open_writer(path).close()
    with RunStore.open_reader(path) as reader, pytest.raises(StoreError, match="opened read-only"):
        reader.set_meta("a", 1)


def test_a_column_that_an_older_file_lacks_is_unknown(path):
    sent = EgressRecord("r-a-0", 1, "10.0.0.2", "comm", 2.0, 1000)
    with RunStore.open_writer(path) as store:
        store.append("egress", [sent])
    with sqlite3.connect(path) as raw:
        for table, column in (("egress", "model_bytes"), ("joins", "donor"), ("joins", "resumed")):
            raw.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        raw.execute("DROP TABLE utilisation")
        for table in ("coverage", "input_ops", "input_batches", "input_traces"):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("PRAGMA user_version = 3")
    raw.close()
    with RunStore.open_reader(path) as store:
        assert store.records("egress") == [sent]
        for table in ("utilisation", "coverage", "input_ops", "input_batches", "input_traces"):
            assert store.records(table) == []
        assert store.columns("egress", ["model_bytes", "bytes"]) == {"bytes": [1000], "model_bytes": [None]}
        assert store.columns("egress", ["model_bytes"]) == {"model_bytes": [None]}
    with RunStore.open_writer(path) as store:  # and an open for writing brings it up
        store.append("egress", [replace(sent, epoch=2, model_bytes=900)])
        assert store.append("utilisation", [UtilisationRecord("r-a-0", 1.0, 10.0, 10, "vm", 4)]) == 1
        assert [row.model_bytes for row in store.records("egress")] == [None, 900]
        for table, row in (
            ("input_ops", InputOpRecord("r-a-0", 1, "decode", 9, 0.5, None, None)),
            ("input_batches", InputBatchRecord("r-a-0", 1, 9, None, 0.5, None, 0.0, None, None, 0)),
            ("input_traces", InputTraceRecord("r-a-0", 2, 0, 0)),
        ):
            assert store.append(table, [row, row]) == 1
            assert store.records(table) == [row]


def test_a_commit_is_on_the_disk_when_it_returns(tmp_path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        (synchronous,) = store._connection.execute("PRAGMA synchronous").fetchone()
        (mode,) = store._connection.execute("PRAGMA journal_mode").fetchone()
    assert (synchronous, mode) == (2, "wal")  # 2: FULL
