"""An in-memory run store that survives simulated controllers, with the commits, rollbacks and faults of run.db."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from metrics.records import TABLES, EventRecord
from metrics.store.database import FencedError, RunStore, StoreError, translated
from metrics.store.meta import RunMeta
from metrics.store.schema import KEYS, STRICT

Hook = Callable[[Sequence[EventRecord]], None]


def _nothing(_: Sequence[EventRecord]) -> None:
    pass


class MemoryStore(RunStore):
    """A `RunStore` without a file. Each `transaction` is one commit, or none if its block raises.

    `before_commit` and `after_commit` are called with the journal rows of each commit that has any, and may raise a
    simulated crash. `refuse` is called before each read and each commit, and may raise SQLite's errors.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self._tables: dict[str, list[Any]] = {table: [] for table in TABLES}
        self._rows: dict[str, dict[tuple[Any, ...], int]] = {table: {} for table in TABLES}  # index by key
        self._meta = dict(meta)
        self._tails: dict[str, int] = {}
        self._undo: list[Callable[[], None]] = []
        self._fresh: list[EventRecord] = []
        self._depth = 0
        self.writer = 0  # the newest writer's token
        self._writing = 0
        self.commits = 0  # commits with journal rows
        self.intents: dict[str, tuple[str, int]] = {}  # (slot, generation) by VM
        self.before_commit: Hook = _nothing
        self.after_commit: Hook = _nothing
        self.refuse: Callable[[Literal["read", "write"]], None] = lambda _: None
        # A fault for tests: journal rows held back until `release`.
        self.held: list[EventRecord] | None = None

    def take_over(self) -> None:
        """Make the caller the only writer from now on."""
        self.writer += 1
        self._writing = self.writer
        self._undo, self._fresh, self._depth = [], [], 0

    def close(self) -> None:
        """Do nothing: there is no file to close."""

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """Commit at the end, or roll back. May be nested. Raises FencedError, and StoreError for errors of `refuse`."""
        if self._depth:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            return
        if self._writing != self.writer:
            raise FencedError("a newer controller has taken this run over")
        self._depth, self._undo, self._fresh = 1, [], []
        try:
            with translated(self.path):
                self.refuse("write")
            yield
            if self._fresh:
                self.before_commit(self._fresh)
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise
        finally:
            self._depth = 0
        if self._fresh:
            self.commits += 1
            for row in self._fresh:
                if row.kind == "intent":
                    self.intents[row.vm] = (row.slot, row.generation)
            self.after_commit(self._fresh)

    def append(self, table: str, rows: Iterable[Any]) -> int:
        """Append rows as run.db does: existing rows are ignored, in `events` they are an error."""
        rows = list(rows)
        if not rows:
            return 0
        if table == "events" and self.held is not None:
            self.held += rows
            return len(rows)
        added = 0
        with self.transaction():
            known, stored = self._rows[table], self._tables[table]
            for row in rows:
                key = tuple(getattr(row, name) for name in KEYS[table])
                if key in known:
                    if table in STRICT:
                        raise StoreError(f"{self.path}: a duplicate row in {table}: {key}")
                    continue
                known[key] = len(stored)
                stored.append(row)
                added += 1

                def undo(key: tuple[Any, ...] = key) -> None:
                    del known[key]
                    stored.pop()

                self._undo.append(undo)
            if table == "events":
                self._fresh += rows
        return added

    def release(self) -> None:
        """Write the journal rows that were held back."""
        rows, self.held = self.held or [], None
        self.append("events", rows)
        self.held = []

    def upsert(self, table: str, rows: Iterable[Any]) -> None:
        """Insert or replace rows."""
        with self.transaction():
            known, stored = self._rows[table], self._tables[table]
            for row in rows:
                at = known.get(tuple(getattr(row, name) for name in KEYS[table]))
                if at is None:
                    self.append(table, [row])
                    continue
                before = stored[at]
                stored[at] = row
                self._undo.append(partial(stored.__setitem__, at, before))

    def records(self, table: str, after: int | None = None) -> list[Any]:
        """Return all rows in the order written. Raises StoreError for errors of `refuse`."""
        self._refuse("read")
        rows = self._tables[table]
        return list(rows) if after is None else [row for row in rows if row.seq > after]

    def _refuse(self, what: Literal["read", "write"]) -> None:
        """Call `refuse` and convert its errors to StoreError."""
        try:
            self.refuse(what)
        except sqlite3.Error as error:
            with translated(self.path):
                raise error

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]:
        """Return all rows by column."""
        names = only or [name for name in TABLES[table].__slots__]
        return {name: [getattr(row, name) for row in self._tables[table]] for name in names}

    def meta(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`; it must not be modified. Raises the errors of `records`."""
        self._refuse("read")
        return self._meta.get(key, default)

    def run_meta(self) -> RunMeta:
        """Return all metadata."""
        return RunMeta.from_json(dict(self._meta))

    def set_meta(self, key: str, value: Any) -> None:
        """Set the value of `key`."""
        with self.transaction():
            missing = key not in self._meta
            before = self._meta.get(key)
            self._meta[key] = value
            self._undo.append(
                lambda: self._meta.pop(key, None) if missing else self._meta.__setitem__(key, before)
            )

    def tail_offset(self, name: str) -> int:
        """Return the number of bytes of that file that are in the tables."""
        return self._tails.get(name, 0)

    def set_tail_offset(self, name: str, offset_bytes: int) -> None:
        """Set the number of bytes of that file that are in the tables."""
        with self.transaction():
            before = self._tails.get(name, 0)
            self._tails[name] = offset_bytes
            self._undo.append(lambda: self._tails.__setitem__(name, before))
