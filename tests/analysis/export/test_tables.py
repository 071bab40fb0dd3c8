"""Exporting and importing a run's records changes nothing, whatever their content."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_run import write_run

from analysis.export.tables import ExportError, export_tables, sha256_of
from analysis.importers.orch_export import OrchExport
from metrics.records import TABLES, EventRecord
from metrics.store.database import RunStore, StoreError
from metrics.summary import summarise

pytestmark = pytest.mark.slow

FORMS = ("csv", "parquet")
RUN = "geo-c8-20231114-aaaa"

# SQLite's whole numbers; texts that UTF-8 and SQLite can hold (no lone surrogates).
_WHOLE = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "\\N",
        "\\\\N",
        "N",
        "null",
        "None",
        "NaN",
        '"',
        '""',
        ",",
        "\n",
        "\r\n",
        "\\n",
        " a ",
        "'",
        "é",
        "\0",
        "#",
        "=1",
    ]
)
_AMOUNT = st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [Decimal("0.180"), Decimal("1E+3"), Decimal("-0.00"), Decimal("1E-30"), Decimal(10**40)]
)
_FLOAT = st.floats(allow_nan=False) | st.sampled_from(
    [0.1 + 0.2, 5e-324, 1.7976931348623157e308, float("inf"), -0.0]
)
_VALUES = {int: _WHOLE, float: _FLOAT, bool: st.booleans(), str: _TEXT, Decimal: _AMOUNT}
_META = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _records(table: str) -> st.SearchStrategy[list[Any]]:
    kind = TABLES[table]
    hints = get_type_hints(kind)
    columns: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(kind):
        hint = hints[field.name]
        optional = get_origin(hint) is UnionType
        plain = next(a for a in get_args(hint) if a is not NoneType) if optional else hint
        columns[field.name] = st.none() | _VALUES[plain] if optional else _VALUES[plain]
    return st.lists(st.builds(kind, **columns), max_size=4)


_RUNS = st.fixed_dictionaries({table: _records(table) for table in TABLES if table != "events"})


def _everything(path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Meta and every record as text: a Decimal's zeros and a float's last digit count."""
    with RunStore.open_reader(path) as store:
        return store.all_meta(), {table: [repr(r) for r in store.records(table)] for table in TABLES}


def _write(path: Path, records: Mapping[str, list[Any]], meta: Mapping[str, Any]) -> None:
    with RunStore.open_writer(path) as store, store.transaction():
        for key, value in meta.items():
            store.set_meta(key, value)
        for table, rows in records.items():
            store.append(table, rows)


def _there_and_back(run_db: Path, form: str, work: Path) -> Path:
    export_tables(run_db, work / "out", form)
    (folder,) = OrchExport().import_runs(work / "out", work / "back").folders
    return folder / "run.db"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    records=_RUNS, meta=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), _META, max_size=4)
)
def test_records_round_trip(form: str, records: dict[str, list[Any]], meta: dict[str, Any]):
    with TemporaryDirectory() as name:
        work = Path(name)
        _write(work / "run" / "run.db", records, meta | {"run_id": "a-1"})
        back = _there_and_back(work / "run" / "run.db", form, work)
        assert back.parent.name == "a-1"
        assert repr(_everything(back)) == repr(_everything(work / "run" / "run.db"))


@pytest.mark.parametrize("form", FORMS)
def test_run_round_trips_with_all_numbers(form: str, tmp_path: Path):
    write_run(tmp_path / RUN)
    run_db = tmp_path / RUN / "run.db"
    with RunStore.open_writer(run_db) as store:
        store.append(
            "events",
            [EventRecord(0, 1.5, "run_created", "", -1, "", "", "", "by\nhand", '{"a": "\\"b\\\\"}')],
        )
    back = _there_and_back(run_db, form, tmp_path)
    assert _everything(back) == _everything(run_db)
    with RunStore.open_reader(run_db) as before, RunStore.open_reader(back) as after:
        assert json.dumps(summarise(after)) == json.dumps(summarise(before))


@pytest.mark.parametrize("form", FORMS)
def test_the_same_records_give_the_same_files(form: str, tmp_path: Path):
    write_run(tmp_path / RUN)
    for out in ("one", "two"):
        export_tables(tmp_path / RUN / "run.db", tmp_path / out, form)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert [entry["table"] for entry in manifest["tables"]] == list(TABLES)
    assert {entry["file"] for entry in manifest["tables"]} | {"meta.json", "manifest.json"} == {
        file.name for file in (tmp_path / "one").iterdir()
    }
    assert manifest["run_id"] == RUN


def test_a_csv_line_is_a_row(tmp_path: Path):
    """One line per row keeps line numbers in messages meaningful and text tools usable."""
    rows = [EventRecord(n, 1.0, "a\nb", "", -1, "\r", "\\N", "", "", "{}") for n in range(3)]
    _write(tmp_path / "r" / "run.db", {"events": rows}, {"run_id": "r"})
    export_tables(tmp_path / "r" / "run.db", tmp_path / "out", "csv")
    lines = (tmp_path / "out" / "events.csv").read_bytes().split(b"\n")
    assert len(lines) == 5
    assert lines[1] == b"0,1.0,a\\nb,,-1,\\r,\\\\N,,,{}"


def test_running_run_is_exported_as_of_one_moment(tmp_path: Path):
    """A writer has the run open, with rows in its write-ahead log that are not in the file yet."""
    write_run(tmp_path / RUN)
    with RunStore.open_writer(tmp_path / RUN / "run.db") as store:
        store.set_meta("status", "running")
        before = _everything(tmp_path / RUN / "run.db")
        with store.transaction():
            store.set_meta("status", "done")  # not committed: no part of that moment
            export_tables(tmp_path / RUN / "run.db", tmp_path / "out", "csv")
    (folder,) = OrchExport().import_runs(tmp_path / "out", tmp_path / "back").folders
    assert _everything(folder / "run.db") == before


def test_keys_and_logs_are_not_exported(tmp_path: Path):
    write_run(tmp_path / RUN)
    for name in ("keys/environment.key", "logs/peer.log"):
        (tmp_path / RUN / name).parent.mkdir()
        (tmp_path / RUN / name).write_text("hunter2")
    for form in FORMS:
        export_tables(tmp_path / RUN / "run.db", tmp_path / form, form)
        assert not any(b"hunter2" in file.read_bytes() for file in (tmp_path / form).rglob("*"))


def test_existing_output_is_not_replaced_without_force(tmp_path: Path):
    write_run(tmp_path / RUN)
    run_db, out = tmp_path / RUN / "run.db", tmp_path / "out"
    export_tables(run_db, out, "csv")
    with pytest.raises(ExportError, match="already exists; use --force"):
        export_tables(run_db, out, "parquet")
    assert (out / "vms.csv").is_file()
    export_tables(run_db, out, "parquet", force=True)
    assert not (out / "vms.csv").exists()
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(ExportError, match="not an orch export"):
        export_tables(run_db, precious, "csv", force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match="not an orch export"):
        export_tables(run_db, tmp_path / "file", "csv", force=True)
    with pytest.raises(ExportError, match="cannot be written"):
        export_tables(run_db, tmp_path / "file" / "below", "csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([RUN, "out", "thesis", "file"])


def test_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_run(tmp_path / RUN)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analysis.export.tables._write_csv", full)
    with pytest.raises(OSError, match="No space"):
        export_tables(tmp_path / RUN / "run.db", tmp_path / "out", "csv")
    assert [p.name for p in tmp_path.iterdir()] == [RUN]


def test_missing_run_is_reported(tmp_path: Path):
    with pytest.raises(StoreError, match="no such run"):
        export_tables(tmp_path / "run.db", tmp_path / "out", "csv")
    (tmp_path / "run.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="is not a run's database"):
        export_tables(tmp_path / "run.db", tmp_path / "out", "csv")
    assert not (tmp_path / "out").exists()


def test_a_run_of_an_older_schema_is_exported(tmp_path: Path):
    """A schema before swarm_epochs, joins, utilisation, coverage and egress.model_bytes."""
    write_run(tmp_path / RUN)
    run_db = tmp_path / RUN / "run.db"
    with sqlite3.connect(run_db) as connection:
        connection.execute("DROP TABLE swarm_epochs")
        connection.execute("DROP TABLE joins")
        connection.execute("DROP TABLE utilisation")
        for table in ("coverage", "input_ops", "input_batches", "input_traces"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE egress DROP COLUMN model_bytes")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert _everything(_there_and_back(run_db, "csv", tmp_path)) == _everything(run_db)


@pytest.mark.parametrize("form", FORMS)
def test_an_export_of_an_older_schema_is_read(form: str, tmp_path: Path):
    """Columns that its tables lack are unknown in every row."""
    import pyarrow.parquet as pq

    write_run(tmp_path / RUN)
    out = tmp_path / "out"
    export_tables(tmp_path / RUN / "run.db", out, form)
    newer = {"egress": ["model_bytes"], "joins": ["donor", "resumed"]}
    for table, columns in newer.items():
        old = out / f"{table}.{form}"
        if form == "csv":
            lines = old.read_text().splitlines()
            old.write_text("".join(f"{line.rsplit(',', len(columns))[0]}\n" for line in lines))
        else:
            pq.write_table(pq.read_table(old).drop_columns(columns), old)
    manifest = json.loads((out / "manifest.json").read_text())
    for entry in manifest["tables"]:
        if entry["table"] in newer:
            entry["sha256"] = sha256_of(out / f"{entry['table']}.{form}")
    (out / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 3}))
    (folder,) = OrchExport().import_runs(out, tmp_path / "back").folders
    assert _everything(folder / "run.db") == _everything(tmp_path / RUN / "run.db")
