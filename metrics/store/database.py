"""The run store: one SQLite file per run (`run.db`), with one writer and any number of readers.

The writer is the run's controller. Two mechanisms exclude a second one: a lock on `run.lock`, which the kernel releases
when its holder dies, and a fencing token in the database. Each new writer increments the token and every transaction
checks it, so a writer that lost its lock without noticing cannot write.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from metrics.records import TABLES, VmRecord
from metrics.store.meta import RunMeta
from metrics.store.schema import (
    KEYS,
    MIGRATIONS,
    SCHEMA_VERSION,
    SINCE,
    STRICT,
    columns_of,
    from_sql,
    to_sql,
)

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

__all__ = [
    "SCHEMA_VERSION",
    "DiskFullError",
    "FencedError",
    "NewerError",
    "RunStore",
    "SchemaError",
    "StoreError",
]


# StoreError
# ├── FencedError       another controller holds the run (exit 6)
# ├── SchemaError       this version of orch cannot use the run folder
# │   └── NewerError    a newer version of orch wrote it
# └── DiskFullError     no space left in the state folder
class StoreError(Exception):
    """The run's records cannot be read or written."""


class FencedError(StoreError):
    """Another controller holds the run."""


class SchemaError(StoreError):
    """This version of orch cannot use the schema of the run folder."""


class NewerError(SchemaError):
    """A newer version of orch wrote the run's database."""


class DiskFullError(StoreError):
    """No space left on the disk of the run folder."""


_FREE_BYTES = 1_000_000  # with less free space, an I/O error is reported as a full disk


def _json_default(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


class RunStore:
    """Records, journal and meta of one run. Open it with `open_writer` or `open_reader`, and close it.

    Thread-safe. Every method raises `StoreError`.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        token: int | None,
        lock_fd: int | None,
        version: int = SCHEMA_VERSION,
    ) -> None:
        """Private: use `open_writer` or `open_reader`."""
        self.path = path
        self._connection = connection
        self._token = token
        self._lock_fd = lock_fd
        self._version = version  # a reader may find an older file
        self._mutex = threading.RLock()
        self._depth = 0

    @classmethod
    def open_writer(cls, path: Path) -> RunStore:
        """Open for writing: create the file if it is missing, migrate it and increment the fencing token.

        Raises FencedError while another process, or another writer in this one, holds the run; NewerError if a
        newer version of orch wrote it; DiskFullError without free space.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock_fd = os.open(path.with_name("run.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path.parent}: cannot write to the run folder: {error.strerror}") from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise FencedError(
                f"{path.parent.name}: another controller holds this run; "
                f"`orch status {path.parent.name}` shows it"
            ) from error
        connection: sqlite3.Connection | None = None
        try:
            with translated(path):
                connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")  # a commit is on the disk when it returns
                connection.execute("BEGIN IMMEDIATE")
                _migrate(path, connection)
                connection.execute("UPDATE writer SET token = token + 1")
                token = int(connection.execute("SELECT token FROM writer").fetchone()[0])
                connection.execute("COMMIT")
        except BaseException:
            if connection is not None:
                connection.close()
            os.close(lock_fd)
            raise
        return cls(path, connection, token, lock_fd)

    @classmethod
    def open_reader(cls, path: Path) -> RunStore:
        """Open for reading, with or without a writer at the same time. Raises StoreError if there is no such run."""
        if not path.exists():
            raise StoreError(f"{path}: no such run; `orch ls` lists the runs")
        with translated(path):
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=10,
            )
            try:
                version = _version(connection)
            except BaseException:
                connection.close()
                raise
        if not 1 <= version <= SCHEMA_VERSION:
            connection.close()
            raise _schema_error(path, version)
        return cls(path, connection, None, None, version)

    def close(self) -> None:
        """Close the file and, for a writer, release the lock."""
        with self._mutex:
            self._connection.close()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """Commit all writes of the block together, or none. They are on disk when the block ends. May be nested.

        Raises FencedError if a newer writer has opened the run.
        """
        if self._token is None:
            raise StoreError(f"{self.path}: opened read-only")
        with self._mutex:
            if self._depth > 0:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
                return
            with translated(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                self._depth = 1
                try:
                    newest = int(self._connection.execute("SELECT token FROM writer").fetchone()[0])
                    if newest != self._token:
                        raise FencedError(
                            f"{self.path.parent.name}: a newer controller has taken over this run"
                        )
                    yield
                    self._connection.execute("COMMIT")
                except BaseException:
                    # After some errors (disk full) SQLite has already rolled back.
                    with suppress(sqlite3.OperationalError):
                        self._connection.execute("ROLLBACK")
                    raise
                finally:
                    self._depth = 0

    def append(self, table: str, rows: Iterable[Any]) -> int:
        """Append records to a table of `metrics.records.TABLES` and return how many were new.

        Rows that exist already are ignored. In `events` a duplicate `seq` raises StoreError instead.
        """
        names = [name for name, _, _ in columns_of(table)]
        return self._insert(table, [tuple(to_sql(getattr(row, name)) for name in names) for row in rows])

    def append_columns(self, table: str, columns: Mapping[str, Sequence[Any]]) -> int:
        """Append rows given as whole columns of equal length, for many rows at once. Returns how many were new.

        Every column of the table's first schema is required. Columns added later may be left out (unknown).
        """
        names = [name for name, _, _ in columns_of(table)]
        first = {name for name, _, _ in columns_of(table, SINCE.get(table, 1))}
        missing = [name for name in names if name not in columns and name in first]
        if missing:
            raise StoreError(f"{self.path}: missing columns for table {table}: {', '.join(missing)}")
        unknown = [None] * max(map(len, columns.values()), default=0)
        return self._insert(table, list(zip(*(columns.get(name, unknown) for name in names), strict=True)))

    def _insert(self, table: str, values: list[tuple[Any, ...]]) -> int:
        if not values:
            return 0
        columns = [name for name, _, _ in columns_of(table)]
        conflict = "" if table in STRICT else f" ON CONFLICT ({', '.join(KEYS[table])}) DO NOTHING"
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}){conflict}"
        with self.transaction():
            before = self._connection.total_changes
            self._connection.executemany(sql, values)
            return self._connection.total_changes - before

    def upsert_vm(self, row: VmRecord) -> None:
        """Insert a VM's row, or replace the row with the same name."""
        self.upsert("vms", [row])

    def upsert(self, table: str, rows: Iterable[Any]) -> None:
        """Insert records, or replace the rows with the same keys, which keep their place in the order written."""
        columns, keys = [name for name, _, _ in columns_of(table)], KEYS[table]
        values = [tuple(to_sql(getattr(row, name)) for name in columns) for row in rows]
        updates = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
        with self.transaction():
            self._connection.executemany(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
                f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {updates}",
                values,
            )

    def records(self, table: str, after: int | None = None) -> list[Any]:
        """Return all rows of a table as records, in the order written (`events`: only seq > `after`)."""
        if SINCE.get(table, 1) > self._version:
            return []
        columns = columns_of(table, self._version)  # newer columns come last and have defaults
        record = TABLES[table]
        where = f" WHERE seq > {int(after)}" if after is not None and table == "events" else ""
        rows = self._query(f"SELECT {', '.join(c[0] for c in columns)} FROM {table}{where} ORDER BY rowid")
        kinds = [kind for _, kind, _ in columns]
        return [record(*(from_sql(k, v) for k, v in zip(kinds, row, strict=True))) for row in rows]

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]:
        """Return all rows of a table by column, in the order written. Faster than `records` for many rows.

        `only`: the columns to read, default all.
        """
        known = [column for column in columns_of(table) if not only or column[0] in only]
        names = [name for name, _, _ in known]
        if SINCE.get(table, 1) > self._version:
            return {name: [] for name in names}
        stored = [name for name, *_ in columns_of(table, self._version) if name in names]
        rows = self._query(f"SELECT {', '.join(stored) or '1'} FROM {table} ORDER BY rowid")
        found = {name: [row[i] for row in rows] for i, name in enumerate(stored)}
        newer = [None] * len(rows)
        return {
            name: list(found.get(name, newer))
            if kind not in (bool, Decimal)
            else [from_sql(kind, v) for v in found.get(name, newer)]
            for name, kind, _ in known
        }

    def frame(self, table: str) -> pd.DataFrame:
        """Return a table as a DataFrame. Missing numbers are NaN, Decimals stay Decimal objects."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        columns = columns_of(table)
        rows = [[getattr(r, c[0]) for c in columns] for r in self.records(table)]
        frame = pd.DataFrame(rows, columns=[c[0] for c in columns])
        casts = {
            name: _FRAME_TYPES[kind]
            for name, kind, optional in columns
            if kind in _FRAME_TYPES and not (optional and kind is not float)
        }
        return frame.astype(casts)  # pyright: ignore[reportUnknownMemberType]

    def meta(self, key: str, default: Any = None) -> Any:
        """Return the value of one key of `RunMeta`, or `default`. Meant for keys that a running controller keeps updating."""
        rows = self._query("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else default

    def run_meta(self) -> RunMeta:
        """Return the current meta as a record."""
        return RunMeta.from_json(self.all_meta())

    def all_meta(self) -> dict[str, Any]:
        """Return all keys of meta as stored, for exports."""
        return {row[0]: json.loads(row[1]) for row in self._query("SELECT key, value FROM meta ORDER BY key")}

    def set_meta(self, key: str, value: Any) -> None:
        """Set `key` to a JSON value. Decimals become strings."""
        with self.transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
                (key, json.dumps(value, default=_json_default)),
            )

    def tail_offset(self, name: str) -> int:
        """Return how many bytes of the file `name` have been read into the tables."""
        rows = self._query("SELECT offset FROM tails WHERE name = ?", (name,))
        return int(rows[0][0]) if rows else 0

    def set_tail_offset(self, name: str, offset_bytes: int) -> None:
        """Set the tail offset. Use the same `transaction()` as for the rows read up to it."""
        with self.transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO tails (name, offset) VALUES (?, ?)", (name, offset_bytes)
            )

    def _query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._mutex, translated(self.path):
            return cast(
                "list[tuple[Any, ...]]", self._connection.execute(sql, tuple(cast("Any", values))).fetchall()
            )


_FRAME_TYPES: dict[type, str] = {int: "int64", float: "float64", bool: "bool", str: "object"}


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _schema_error(path: Path, version: int) -> SchemaError:
    if version > SCHEMA_VERSION:
        return NewerError(
            f"{path}: written by a newer orch (schema {version}, this version supports {SCHEMA_VERSION}); "
            "upgrade orch: `git pull` in its clone, then `pip install -e .`"
        )
    return SchemaError(f"{path}: holds no run yet; `orch ls` lists the runs")


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    version = _version(connection)
    if version > SCHEMA_VERSION:
        raise _schema_error(path, version)
    for number in range(version, SCHEMA_VERSION):
        MIGRATIONS[number](connection)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _out_of_space(path: Path, code: int | None) -> bool:
    """Whether an I/O error is due to a full disk. SQLite reports that only for pages, not for its WAL index."""
    if code is None or code & 0xFF != sqlite3.SQLITE_IOERR:
        return False
    try:
        return shutil.disk_usage(path.parent).free < _FREE_BYTES
    except OSError:
        return False


@contextmanager
def translated(path: Path) -> Generator[None, None, None]:
    """Convert SQLite's errors to StoreErrors."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL or _out_of_space(path, code):
            raise DiskFullError(
                f"{path}: no space left on the disk; free some space, then run `orch attach {path.parent.name}`"
            ) from error
        if code == sqlite3.SQLITE_NOTADB:
            raise SchemaError(f"{path}: is not a run's database; `orch ls` lists the runs") from error
        raise StoreError(f"{path}: {error}") from error
