"""Format rows of plain data as a table, JSON, YAML or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


class Format(StrEnum):
    """Output format of a list."""

    table = "table"
    json = "json"
    yaml = "yaml"
    csv = "csv"


def plain(value: Any) -> Any:
    """Convert to JSON types: Decimal to a number, Path to a string, non-finite floats to null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return plain(float(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def as_json(value: Any) -> str:
    """Serialise as a JSON document with an indent of two, ending in a newline."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def rows_text(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    form: Format,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Format `rows`, ending in a newline.

    Table and CSV contain exactly `columns`. JSON and YAML are
    `{"schema_version": 1, "<name>": [{...}, ...]}` with every key of the rows, followed by the keys of `more`.
    """
    if form is Format.json:
        return as_json({"schema_version": SCHEMA_VERSION, name: rows, **(more or {})})
    if form is Format.yaml:
        import yaml

        document = {"schema_version": SCHEMA_VERSION, name: plain(list(rows)), **plain(more or {})}
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if form is Format.csv:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if row.get(c) is None else plain(row[c]) for c in columns])
        return buffer.getvalue()
    return _table(rows, columns)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    header = [c.upper().replace("_", " ") for c in columns]
    cells = [[_cell(row.get(c)) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(columns))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *cells]
    ]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    return str(value)
