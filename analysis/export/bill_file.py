"""Reads a provider's FOCUS export (any 1.x version): rows by column name, each with its position in the file.

Plain or gzipped CSV, or Parquet. Files are read as a stream.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any

_NEEDED = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd", "ServiceName")
_WHOLE = "download the export again"


# BillError   the file is not a readable FOCUS export, or has no rows of the run (exit 2)
class BillError(Exception):
    """The bill cannot be used. The message gives file, line and column, and the next step."""


class BillRow:
    """One row of the bill. Values are parsed on access, so that only values in use must be valid."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        """`where`: file and line; `values`: by the column's normalised name."""
        self.where = where
        self._values = values

    def text(self, *columns: str) -> str:
        """Return the first of the columns that has a value, "" if none has."""
        for column in columns:
            value = self._values.get(_normalised(column))
            if value is not None and value != "":
                return str(value)
        return ""

    def amount(self, column: str) -> Decimal:
        """Return the column as a finite number. Raises BillError."""
        text = self.text(column)
        try:
            amount = Decimal(text)
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite():
            raise BillError(f"{self.where}: {column}: '{text[:80]}' is not an amount; {_WHOLE}")
        return amount

    def time_s(self, column: str) -> float:
        """Return the column's date and time as unix seconds. Raises BillError."""
        value = self._values.get(_normalised(column))
        try:
            at = value if isinstance(value, datetime) else _datetime(str(value))
        except ValueError as error:
            raise BillError(
                f"{self.where}: {column}: '{str(value)[:80]}' is not a date and time; {_WHOLE}"
            ) from error
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

    def tags(self) -> dict[str, str]:
        """Return the tags, from JSON, a map, or a list of keys and values; {} if there are none."""
        value = self._values.get("tags")
        if isinstance(value, str):
            try:
                value = json.loads(value) if value else {}
            except ValueError:
                return {}
        if isinstance(value, Mapping):
            return {str(key): str(item) for key, item in value.items()}
        pairs: dict[str, str] = {}
        for item in value if isinstance(value, list) else []:
            if isinstance(item, Mapping) and "key" in item:
                pairs[str(item["key"])] = str(item.get("value"))
            elif isinstance(item, tuple) and len(item) == 2:
                pairs[str(item[0])] = str(item[1])
        return pairs


def read_bill(path: Path) -> Iterator[BillRow]:
    """Yield the rows of the file. Raises BillError, also during iteration."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        yield from _csv(path)


def _csv(path: Path) -> Iterator[BillRow]:
    line = 0
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(path.open("rb"))
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            data: Any = stack.enter_context(gzip.GzipFile(fileobj=raw)) if zipped else raw
            reader = csv.reader(_lines(data), strict=True)
            names = _header(path, 1, next(reader, []))
            for cells in reader:
                line = reader.line_num
                if len(cells) != len(names):
                    raise BillError(
                        f"{path}:{line}: {len(cells)} cells, but {len(names)} columns: the line is truncated or damaged; {_WHOLE}"
                    )
                yield BillRow(f"{path}:{line}", dict(zip(names, cells, strict=True)))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BillError(
            f"{path}:{line + 1}: the gzip file is truncated or damaged ({error}); {_WHOLE}"
        ) from error
    except UnicodeDecodeError as error:
        raise BillError(
            f"{path}:{line + 1}: not UTF-8 text; give a FOCUS export as CSV or Parquet"
        ) from error
    except csv.Error as error:
        raise BillError(f"{path}:{line + 1}: {error}: the line is truncated or damaged; {_WHOLE}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _lines(data: Iterable[bytes]) -> Iterator[str]:
    """Decode line by line, so that an error can give the line number."""
    for number, line in enumerate(data):
        yield line.decode("utf-8" if number else "utf-8-sig")


def _parquet(path: Path) -> Iterator[BillRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = _header(path, None, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield BillRow(f"{path}: row {number}", dict(zip(names, values.values(), strict=True)))
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise BillError(
            f"{path}: cannot be read as Parquet, it may be truncated ({reason}); {_WHOLE}"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _header(path: Path, line: int | None, header: list[str]) -> list[str]:
    names = [_normalised(name) for name in header]
    missing = [name for name in _NEEDED if _normalised(name) not in names]
    if missing:
        where = path if line is None else f"{path}:{line}"
        raise BillError(
            f"{where}: no column {', '.join(missing)}; give a FOCUS 1.x export of the provider's costs"
        )
    return names


@cache
def _normalised(name: str) -> str:
    """Normalise a column's name: some exports write `billed_cost` for `BilledCost`."""
    return name.strip().replace("_", "").casefold()


def _datetime(text: str) -> datetime:
    return datetime.fromisoformat(text.strip().removesuffix(" UTC"))


def _unreadable(path: Path, error: OSError) -> BillError:
    return BillError(f"{path}: cannot be read ({error.strerror or error}); give the path of a FOCUS export")
