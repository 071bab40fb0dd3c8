"""Schema of the run store: tables derived from the record types, keys, migrations and value conversion."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from metrics.records import TABLES

# Primary keys. A second row with the same key is ignored, because the monitor may report something twice.
KEYS: dict[str, tuple[str, ...]] = {
    "events": ("seq",),
    "vms": ("vm",),
    "progress": ("at_s", "vm"),
    "epochs": ("vm", "epoch"),
    "egress": ("vm", "epoch", "dst_address", "phase"),
    "ingress": ("vm", "epoch"),
    "steps": ("vm", "step"),
    "swarm_epochs": ("epoch",),
    "joins": ("vm",),
    "utilisation": ("vm", "began_s"),
    "coverage": ("vm", "number"),
    "input_ops": ("vm", "epoch", "op"),
    "input_batches": ("vm", "epoch"),
    "input_traces": ("vm",),
}
# Schema version that introduced a table, if not the first. In older files the table reads as empty.
SINCE = {
    "swarm_epochs": 2,
    "joins": 3,
    "utilisation": 6,
    "coverage": 7,
    "input_ops": 8,
    "input_batches": 8,
    "input_traces": 8,
}
# The same for columns. In older files the column reads as None.
_COLUMN_SINCE = {("egress", "model_bytes"): 4, ("joins", "donor"): 5, ("joins", "resumed"): 5}
# Tables in which a duplicate key is an error: a duplicate journal entry is a bug.
STRICT = {"events"}
_SQL_TYPES: dict[type, str] = {int: "INTEGER", bool: "INTEGER", float: "REAL", str: "TEXT", Decimal: "TEXT"}


@cache
def columns_of(table: str, version: int | None = None) -> tuple[tuple[str, type, bool], ...]:
    """Return (name, Python type, optional) of each column, in the record's order.

    `version`: only the columns that this schema version has.
    """
    record = TABLES[table]
    hints = get_type_hints(record)
    columns: list[tuple[str, type, bool]] = []
    for field in fields(record):
        if version is not None and _COLUMN_SINCE.get((table, field.name), 1) > version:
            continue
        hint = hints[field.name]
        optional = get_origin(hint) is UnionType and NoneType in get_args(hint)
        kind = next(a for a in get_args(hint) if a is not NoneType) if optional else hint
        columns.append((field.name, kind, optional))
    return tuple(columns)


def _create_sql(table: str, version: int) -> str:
    lines = [
        f"{name} {_SQL_TYPES[kind]}{'' if optional else ' NOT NULL'}"
        for name, kind, optional in columns_of(table, version)
    ]
    return f"CREATE TABLE {table} ({', '.join(lines)}, PRIMARY KEY ({', '.join(KEYS[table])}))"


def _migrate_1(connection: sqlite3.Connection) -> None:
    """Create the first schema: record tables, meta, tail offsets and the writer's token."""
    for table in (t for t in TABLES if t not in SINCE):
        connection.execute(_create_sql(table, 1))
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
    connection.execute("CREATE TABLE tails (name TEXT PRIMARY KEY, offset INTEGER NOT NULL)")
    connection.execute("CREATE TABLE writer (token INTEGER NOT NULL)")
    connection.execute("INSERT INTO writer (token) VALUES (0)")


def _migrate_2(connection: sqlite3.Connection) -> None:
    """Add the epochs of the whole swarm that a monitor logged (imported runs)."""
    connection.execute(_create_sql("swarm_epochs", 2))


def _migrate_3(connection: sqlite3.Connection) -> None:
    """Add the joins of peers."""
    connection.execute(_create_sql("joins", 3))


def _migrate_4(connection: sqlite3.Connection) -> None:
    """Add the payload of the model that a peer's program counted, next to the bytes that the kernel sent."""
    connection.execute("ALTER TABLE egress ADD COLUMN model_bytes INTEGER")


def _migrate_5(connection: sqlite3.Connection) -> None:
    """Add the donor of a joiner's state and how often the download was resumed."""
    connection.execute("ALTER TABLE joins ADD COLUMN donor TEXT")
    connection.execute("ALTER TABLE joins ADD COLUMN resumed INTEGER")


def _migrate_6(connection: sqlite3.Connection) -> None:
    """Add the utilisation of VMs."""
    connection.execute(_create_sql("utilisation", 6))


def _migrate_7(connection: sqlite3.Connection) -> None:
    """Add the samples that peers used."""
    connection.execute(_create_sql("coverage", 7))


def _migrate_8(connection: sqlite3.Connection) -> None:
    """Add the sums of input traces."""
    for table in ("input_ops", "input_batches", "input_traces"):
        connection.execute(_create_sql(table, 8))


# Append only: migration n converts schema n - 1 to schema n.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _migrate_1,
    _migrate_2,
    _migrate_3,
    _migrate_4,
    _migrate_5,
    _migrate_6,
    _migrate_7,
    _migrate_8,
)
SCHEMA_VERSION = len(MIGRATIONS)


def to_sql(value: object) -> object:
    """Convert a record's value for SQLite: Decimals to text."""
    return str(value) if isinstance(value, Decimal) else value


def from_sql(kind: type, value: Any) -> Any:
    """Convert a value from SQLite to a field's type."""
    if value is None:
        return None
    return kind(value)
