"""Imports exports of `orch export RUN --to csv|parquet`: all records and meta data, unchanged.

A folder is one export (with a `manifest.json`) or contains several. The run keeps its own price book.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from analysis.export.tables import (
    CHUNK_ROWS,
    EXPORT_FORMAT,
    EXPORT_VERSION,
    MANIFEST,
    NULL,
    parquet_schema,
    sha256_of,
)
from analysis.importers.base import Imported, ImportFailed
from cloud.prices.book import PriceBook
from metrics.records import TABLES
from metrics.store.database import RunStore, StoreError
from metrics.store.schema import SCHEMA_VERSION, SINCE, columns_of

_AGAIN = "export the run again with `orch export`"
_CONTENT = {"focus": "costs"}  # of exports that are not imported
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CHARACTERS = {"\\": "\\", "n": "\n", "r": "\r", "0": "\0"}


class OrchExport:
    """The importer of orch's own exports; see `analysis.importers.base.Importer`."""

    name = "orch export"

    def recognises(self, folder: Path) -> bool:
        """Whether the folder or one of its subfolders has an export's manifest."""
        return bool(_exports(folder))

    def import_runs(
        self,
        folder: Path,
        into: Path,
        *,
        index: Path | None = None,
        only: Sequence[str] = (),
        book: PriceBook | None = None,
    ) -> Imported:
        """Write `<into>/<run id>/run.db` for each export. Invalid exports are reported as problems and skipped.

        `index` and `book` are ignored, because an export contains its run's name and prices. Raises ImportFailed if no
        run can be imported.
        """
        folders: list[Path] = []
        problems: list[str] = []
        read: dict[str, Path] = {}
        named: set[str] = set()
        for export in _exports(folder):
            try:
                manifest = _manifest(export)
                run_id = manifest["run_id"]
                if only and run_id not in only:
                    continue
                named.add(run_id)
                if run_id in read:
                    problems.append(
                        f"{export}: run {run_id} is also in {read[run_id]}; only that one is read"
                    )
                    continue
                folders.append(_import(export, manifest, into / run_id))
                read[run_id] = export
            except ImportFailed as error:
                problems.append(str(error))
        problems += [f"{folder}: no export of run {run_id}" for run_id in only if run_id not in named]
        if not folders:
            raise ImportFailed(
                "; ".join(problems) or f"{folder}: contains no export; create one with `orch export`"
            )
        return Imported(tuple(folders), tuple(problems))


@dataclass(frozen=True)
class _File:
    """A file listed in the manifest."""

    path: Path
    sha256: str
    rows: int

    def open(self) -> BinaryIO:
        """Open the file for reading. Raises ImportFailed."""
        try:
            return self.path.open("rb")
        except OSError as error:
            raise ImportFailed(f"{self.path}: cannot be read ({error.strerror}); {_AGAIN}") from error

    def check(self, rows: int) -> None:
        """Compare the file with the manifest. Called after parsing, whose errors are more specific. Raises ImportFailed."""
        if rows != self.rows:
            raise ImportFailed(f"{self.path}: {rows} rows, but the manifest says {self.rows}; {_AGAIN}")
        if sha256_of(self.path) != self.sha256:
            raise ImportFailed(f"{self.path}: changed since the export (its sha256 differs); {_AGAIN}")


def _exports(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    candidates = [folder, *sorted(child for child in folder.iterdir() if child.is_dir())]
    return [path for path in candidates if _is_manifest(path / MANIFEST)]


def _is_manifest(manifest: Path) -> bool:
    """Whether a file is an export's manifest, even if it is truncated or of another version."""
    try:
        return f'"{EXPORT_FORMAT}"' in manifest.read_text(encoding="utf-8", errors="replace")[:1000]
    except OSError:
        return False


def _manifest(export: Path) -> dict[str, Any]:
    path = export / MANIFEST
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        versions = int(known["version"]), int(known["schema_version"])
        run_id, form = str(known["run_id"]), str(known["form"])
        if versions[0] > EXPORT_VERSION or versions[1] > SCHEMA_VERSION:
            raise ImportFailed(
                f"{path}: written by a newer orch ({known.get('orch_version')}); "
                "upgrade orch: `git pull` in its clone, then `pip install -e .`"
            )
        if form not in ("csv", "parquet"):
            raise ImportFailed(
                f"{path}: a {form} export contains the run's {_CONTENT.get(form, 'figures')}, not its records; "
                "use `orch export --to csv`"
            )
        if not _RUN_ID.fullmatch(run_id):
            raise ImportFailed(f"{path}: run_id '{run_id[:80]}' is not a valid run id; {_AGAIN}")
        for entry in (known["meta"], *known["tables"]):
            if Path(str(entry["file"])).name != entry["file"]:
                raise ImportFailed(f"{path}: file '{entry['file']}' is not in the export's folder; {_AGAIN}")
            if not isinstance(entry["sha256"], str) or not isinstance(entry.get("rows", 0), int):
                raise ImportFailed(f"{path}: '{entry['file']}' has no sha256 or rows; {_AGAIN}")
        return known
    except json.JSONDecodeError as error:
        raise ImportFailed(f"{path}:{error.lineno}:{error.colno}: {error.msg}; {_AGAIN}") from error
    except KeyError as error:
        raise ImportFailed(f"{path}: key {error} is missing; {_AGAIN}") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ImportFailed(f"{path}: cannot be read: {error}; {_AGAIN}") from error


def _import(export: Path, manifest: Mapping[str, Any], target: Path) -> Path:
    entries = {
        str(entry["table"]): _File(export / entry["file"], str(entry["sha256"]), int(entry["rows"]))
        for entry in manifest["tables"]
    }
    meta_file = _File(export / manifest["meta"]["file"], str(manifest["meta"]["sha256"]), 0)
    if (target / "run.db").exists():
        raise ImportFailed(f"{target}: already contains a run; import into an empty folder")
    meta = _meta(meta_file)
    read = _read_csv if manifest["form"] == "csv" else _read_parquet
    try:
        with RunStore.open_writer(target / "run.db") as store, store.transaction():
            for key, value in meta.items():
                store.set_meta(key, value)
            for table in TABLES:
                if table not in entries:
                    if SINCE.get(table, 1) > int(manifest["schema_version"]):
                        continue  # the table is newer than the export
                    raise ImportFailed(f"{export / MANIFEST}: table {table} is missing; {_AGAIN}")
                rows = new = 0
                for columns in read(entries[table], table, int(manifest["schema_version"])):
                    rows += len(next(iter(columns.values())))
                    new += store.append_columns(table, columns)
                entries[table].check(rows)
                if new != rows:
                    raise ImportFailed(f"{entries[table].path}: contains a row twice; {_AGAIN}")
    except (StoreError, ImportFailed) as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, ImportFailed):
            raise
        raise ImportFailed(f"{export}: {error}") from error
    return target


def _meta(file: _File) -> dict[str, Any]:
    try:
        with file.open() as data:
            meta = json.load(data)
    except json.JSONDecodeError as error:
        raise ImportFailed(f"{file.path}:{error.lineno}:{error.colno}: {error.msg}; {_AGAIN}") from error
    except UnicodeDecodeError as error:
        raise ImportFailed(f"{file.path}: not UTF-8 text; {_AGAIN}") from error
    file.check(0)
    return meta


def _read_csv(file: _File, table: str, version: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the table's columns in chunks of `CHUNK_ROWS` rows. Raises ImportFailed with file, line and column."""
    columns = columns_of(table, version)
    names = [name for name, _, _ in columns]
    with file.open() as data:
        # Decoded line by line, so that an error can give the line number.
        reader = csv.reader((line.decode() for line in data), strict=True)
        try:
            if next(reader, []) != names:
                raise ImportFailed(f"{file.path}:1: the columns are not {','.join(names)}; {_AGAIN}")
            line = 2
            while rows := list(islice(reader, CHUNK_ROWS)):
                for n, row in enumerate(rows):
                    if len(row) != len(names):
                        raise ImportFailed(
                            f"{file.path}:{line + n}: {len(row)} cells, but {len(names)} columns; {_AGAIN}"
                        )
                yield {
                    name: _parse_column(file, line, name, kind, optional, cells)
                    for (name, kind, optional), cells in zip(columns, zip(*rows, strict=True), strict=True)
                }
                line += len(rows)
        except csv.Error as error:
            raise ImportFailed(f"{file.path}:{reader.line_num}: {error}; {_AGAIN}") from error
        except UnicodeDecodeError as error:
            raise ImportFailed(f"{file.path}:{reader.line_num + 1}: not UTF-8 text; {_AGAIN}") from error


def _parse_column(
    file: _File, line: int, name: str, kind: type, optional: bool, cells: Sequence[str]
) -> list[Any]:
    parse = _PARSERS[kind]
    if kind in (int, float) and not (optional and NULL in cells):
        with suppress(ValueError):  # reported below, with its line
            return list(map(parse, cells))
    values: list[Any] = []
    for n, cell in enumerate(cells):
        try:
            if cell == NULL and not optional:
                raise ValueError(cell)
            values.append(None if cell == NULL else parse(cell))
        except (ValueError, KeyError, InvalidOperation) as error:
            raise ImportFailed(
                f"{file.path}:{line + n}: {name}: '{cell[:80]}' is not {_WORDS[kind]}; {_AGAIN}"
            ) from error
    return values


def _text(cell: str) -> str:
    return _ESCAPED.sub(lambda found: _CHARACTERS[found[1]], cell) if "\\" in cell else cell


def _decimal(cell: str) -> str:
    Decimal(cell)  # only validated: the store keeps the text with its trailing zeros
    return cell


_PARSERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda cell: {"true": True, "false": False}[cell],
    str: _text,
    Decimal: _decimal,
}
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Decimal: "an amount",
}


def _read_parquet(file: _File, table: str, version: int) -> Iterator[dict[str, list[Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = columns_of(table, version)
    with file.open() as data:
        try:
            found = pq.ParquetFile(data)
            if not found.schema_arrow.equals(parquet_schema(table, version)):
                raise ImportFailed(
                    f"{file.path}: the columns and their types are not {','.join(n for n, _, _ in known)}; {_AGAIN}"
                )
            for batch in found.iter_batches(CHUNK_ROWS):
                yield {name: batch.column(name).to_pylist() for name, _, _ in known}
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ImportFailed(
                f"{file.path}: cannot be read as Parquet, it may be truncated ({reason}); {_AGAIN}"
            ) from error
