"""Exports a run's records as a folder of CSV or Parquet files, from which `run.db` can be restored without loss.

The folder has one file per table of `metrics.records.TABLES`, `meta.json`, and `manifest.json` (written last: a folder
without it is not an export). Exporting the same records twice gives the same CSV bytes. Not exported: the run's keys,
its logs, and its controller's internal state (how far it has read each log).
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from metrics.records import TABLES
from metrics.store.database import RunStore, StoreError
from metrics.store.schema import SCHEMA_VERSION, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

EXPORT_FORMAT = "orch-export"
EXPORT_VERSION = 1  # of the folder's layout; the records' own version is `schema_version`
MANIFEST = "manifest.json"
NULL = "\\N"  # None in a CSV cell; an empty cell is an empty string

CHUNK_ROWS = 50_000
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\0": "\\0"})


# ExportError   the export cannot be written there, or not in that form (exit 2)
class ExportError(Exception):
    """The export cannot be written. The message gives the next step."""


def export_tables(
    run_db: Path, out: Path, form: Literal["csv", "parquet"], force: bool = False
) -> Mapping[str, Any]:
    """Write the run's records to the folder `out` and return the manifest.

    A run in progress is written as of one moment. `force` replaces an existing export. Raises ExportError,
    metrics.store.database.StoreError.
    """
    write = _write_csv if form == "csv" else _write_parquet
    with new_folder(out, force) as folder, snapshot(run_db) as store:
        meta = store.all_meta()
        text = json.dumps(meta, indent=1)
        (folder / "meta.json").write_text(text + "\n", encoding="utf-8")
        tables: list[dict[str, Any]] = []
        for table in TABLES:
            file = folder / f"{table}.{form}"
            columns = store.columns(table)
            write(file, table, columns)
            rows = len(next(iter(columns.values())))
            tables.append({"table": table, "file": file.name, "rows": rows, "sha256": sha256_of(file)})
        manifest = {
            "format": EXPORT_FORMAT,
            "version": EXPORT_VERSION,
            "schema_version": SCHEMA_VERSION,
            "orch_version": version("orch"),
            "run_id": meta.get("run_id") or run_db.parent.name,
            "form": form,
            "meta": {"file": "meta.json", "sha256": sha256_of(folder / "meta.json")},
            "tables": tables,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


@contextmanager
def snapshot(run_db: Path) -> Generator[RunStore, None, None]:
    """Open a consistent copy of a run's database, unaffected by concurrent writes. Raises StoreError."""
    RunStore.open_reader(run_db).close()  # raises StoreError with a clear message
    with tempfile.TemporaryDirectory(prefix="orch-export-") as name:
        copy = Path(name) / run_db.parent.name / run_db.name
        copy.parent.mkdir()
        try:
            with (
                closing(sqlite3.connect(f"{run_db.absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise StoreError(f"{run_db}: cannot be copied to {copy.parent}: {error}") from error
        with RunStore.open_reader(copy) as store:
            yield store


@contextmanager
def new_folder(out: Path, force: bool) -> Generator[Path, None, None]:
    """Yield a temporary folder that is renamed to `out` if the block succeeds and deleted otherwise.

    `force` replaces an earlier export and nothing else. Raises ExportError.
    """
    out = out.absolute()
    if out.exists() or out.is_symlink():
        if not force:
            raise ExportError(f"{out}: already exists; use --force to replace it, or another --out")
        if not out.is_dir() or out.is_symlink() or not (_is_export(out) or not any(out.iterdir())):
            raise ExportError(f"{out}: not an orch export, so --force does not replace it; use another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    except OSError as error:
        raise ExportError(f"{out}: cannot be written: {error.strerror}; use another --out") from error
    try:
        folder = work / "new"
        folder.mkdir()
        yield folder
        if out.exists():
            os.rename(out, work / "old")
        os.rename(folder, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_export(folder: Path) -> bool:
    try:
        known = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(known, dict) and known.get("format") == EXPORT_FORMAT


def _cells(kind: type, values: Sequence[Any]) -> list[str]:
    """A column's values as CSV cells."""
    if kind is bool:
        return [NULL if value is None else "true" if value else "false" for value in values]
    if kind is str:
        return [NULL if value is None else value.translate(_ESCAPES) for value in values]
    return [NULL if value is None else str(value) for value in values]


def _write_csv(file: Path, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    kinds = {name: kind for name, kind, _ in columns_of(table)}
    rows = len(next(iter(columns.values())))
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(kinds)
        for at in range(0, rows, CHUNK_ROWS):  # a million rows as text would not fit into memory
            part = [_cells(kind, columns[name][at : at + CHUNK_ROWS]) for name, kind in kinds.items()]
            writer.writerows(zip(*part, strict=True))


def _write_parquet(file: Path, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = {
        name: [None if v is None else str(v) for v in columns[name]] if kind is Decimal else columns[name]
        for name, kind, _ in columns_of(table)
    }
    pq.write_table(pa.Table.from_pydict(values, schema=parquet_schema(table)), file)


def parquet_schema(table: str, version: int = SCHEMA_VERSION) -> pa.Schema:
    """Return the columns of a table's Parquet file. Amounts of money are strings with unchanged digits."""
    import pyarrow as pa

    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), Decimal: pa.string()}
    return pa.schema(
        [pa.field(name, types[kind], nullable=null) for name, kind, null in columns_of(table, version)]
    )


def sha256_of(file: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
