"""Reads one CSV log as columns of numbers, with a fast reader for intact files and a tolerant one for others.

The fast reader is Arrow's, which accepts only numbers. If it fails, the tolerant reader parses line by line, skips what
cannot be read and reports its position.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 12  # compressed bytes: at most this many are lost where a file is damaged
_MOST = 1e12  # upper bound of any value in a log: unix seconds and sample counts are far below
_MOST_MBITS = 1e6  # of a network card per second
_MAY_BE_NEGATIVE = ("01_general/minibatch_loss",)


# TableError   the file has no usable table
class TableError(Exception):
    """A log cannot be used. The message names the file and the reason."""


@dataclass
class Table:
    """A log's columns as float64 arrays of one length; a missing cell is NaN."""

    shown: str  # the file's path in messages
    columns: dict[str, np.ndarray]
    header: tuple[str, ...]
    rows: int
    lines: np.ndarray  # the file's line of each row
    sha256: str  # of the file
    content: str  # sha256 of the uncompressed content, to recognise copies of a log
    notes: list[str] = field(default_factory=list)  # sentences on what was skipped

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def get(self, name: str) -> np.ndarray:
        """Return the column, or all NaN if the log does not have it."""
        found = self.columns.get(name)
        return np.full(self.rows, np.nan) if found is None else found

    def at(self, row: int) -> str:
        """Return `file:line` of a row."""
        return f"{self.shown}:{int(self.lines[row])}"

    def missing(self, name: str, therefore: str) -> str:
        """Return a sentence that a column is missing, with the consequence."""
        others = [column for column in self.header if column not in self.columns]
        near = difflib.get_close_matches(name, others, n=1, cutoff=0.75)
        hint = f" (there is '{near[0]}')" if near else ""
        return f"{self.shown}:1: no column '{name}'{hint}: {therefore}."


def read_table(path: Path, shown: str, wanted: Sequence[str]) -> Table:
    """Read the wanted columns of a .csv or .csv.gz. Raises TableError if nothing can be read."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TableError(f"{shown}: cannot be read: {error.strerror}.") from error
    if not raw:
        raise TableError(f"{shown}: the file is empty.")
    notes: list[str] = []
    digest = content = hashlib.sha256(raw).hexdigest()
    data = raw
    if raw.startswith(_GZIP):
        data, cut = _unpacked(raw)
        if cut:
            notes.append(
                f"{shown}: the .gz file is truncated or damaged; the readable part ({len(data)} bytes) is used."
            )
        content = hashlib.sha256(data).hexdigest()
    del raw
    end = data.find(b"\n")
    header = _header(data[:end] if end >= 0 else data)
    chosen = [name for name in wanted if name in header]
    if not chosen:
        raise TableError(
            f"{shown}:1: not a known log: the first line has none of the expected columns "
            f"({', '.join(wanted[:3])}, ...)."
        )
    if end < 0 or not data[end : end + _CHUNK].strip():
        raise TableError(f"{shown}: no rows below the header.")
    columns = None
    if data.endswith(b"\n") and len(set(header)) == len(header) and b"NaN" not in data and b"nan" not in data:
        columns = _fast(data, chosen)
    if columns is not None:
        lines = np.arange(2, len(next(iter(columns.values()))) + 2)
    else:
        columns, lines, more = _tolerant(data, header, chosen, shown)
        notes += more
    if not len(lines):
        raise TableError(f"{shown}: none of its lines can be read.")
    table = Table(shown, columns, tuple(header), len(lines), lines, digest, content, notes)
    for name, column in columns.items():
        table.notes += _impossible(table, name, column)
    return table


def _unpacked(raw: bytes) -> tuple[bytes, bool]:
    """(the decompressed content as far as possible, whether it was truncated). Reads all gzip members."""
    parts: list[bytes] = []
    left = raw
    while left.startswith(_GZIP):
        unpack = zlib.decompressobj(wbits=31)
        try:
            for at in range(0, len(left), _CHUNK):
                parts.append(unpack.decompress(left[at : at + _CHUNK]))
                if unpack.eof:
                    left = unpack.unused_data + left[at + _CHUNK :]
                    break
            else:
                return b"".join(parts), True
        except zlib.error:
            return b"".join(parts), True
    return b"".join(parts), False


def _header(line: bytes) -> list[str]:
    text = line.decode("utf-8-sig", errors="replace").strip("\r\n")
    try:
        return [name.strip() for name in next(csv.reader([text]), [])]
    except csv.Error:
        return []


def _fast(data: bytes, chosen: list[str]) -> dict[str, np.ndarray] | None:
    """Read with Arrow; None if a line or a cell is malformed."""
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=chosen, column_types=dict.fromkeys(chosen, pa.float64())
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return None
    return {name: np.array(table[name].to_numpy(), dtype=np.float64) for name in chosen}


def _tolerant(
    data: bytes, header: list[str], chosen: list[str], shown: str
) -> tuple[dict[str, np.ndarray], np.ndarray, list[str]]:
    """Read line by line and return (columns, each row's line, sentences).

    Lines with a wrong number of cells are skipped, cells that are not numbers become missing.
    """
    at = {name: header.index(name) for name in chosen}
    values = {name: array("d") for name in chosen}
    bad_lines: list[tuple[int, int]] = []
    bad_cells: dict[str, tuple[int, int, bytes]] = {}
    notes: list[str] = []
    numbers = array("q")
    text = io.BytesIO(data)
    text.readline()
    for number, line in enumerate(text, 2):
        if not line.endswith(b"\n"):
            notes.append(f"{shown}:{number}: the file ends in the middle of this line, which is skipped.")
            break
        plain = line.rstrip(b"\r\n")
        if not plain:
            continue
        cells = _quoted(plain) if b'"' in plain else plain.split(b",")
        if len(cells) != len(header):
            bad_lines.append((number, len(cells)))
            continue
        numbers.append(number)
        for name, k in at.items():
            cell = cells[k]
            try:
                value = float(cell) if cell else np.nan
            except ValueError:
                value = np.nan
            if cell and value != value:
                count, first_line, first_cell = bad_cells.get(name, (0, number, cell))
                bad_cells[name] = (count + 1, first_line, first_cell)
            values[name].append(value)
    if bad_lines:
        number, cells_there = bad_lines[0]
        more = f"{len(bad_lines)} such lines are skipped" if len(bad_lines) > 1 else "the line is skipped"
        notes.append(f"{shown}:{number}: {cells_there} cells, but the header has {len(header)}; {more}.")
    for name, (count, number, cell) in bad_cells.items():
        word = cell[:20].decode("utf-8", errors="replace")
        cells_word = f"{count} such cells are" if count > 1 else "it is"
        notes.append(
            f"{shown}:{number}: column '{name}' is not a number ('{word}'); {cells_word} treated as missing."
        )
    return (
        {name: np.array(column, dtype=np.float64) for name, column in values.items()},
        np.array(numbers),
        notes,
    )


def _quoted(line: bytes) -> list[bytes]:
    try:
        row = next(csv.reader([line.decode("utf-8", errors="replace")]), [])
    except csv.Error:
        return []
    return [cell.encode() for cell in row]


def _impossible(table: Table, name: str, column: np.ndarray) -> list[str]:
    """Set impossible values to missing, in place, and return sentences about them."""
    notes: list[str] = []
    most = _MOST_MBITS if name.endswith("_Mbits") else _MOST
    for what in ("infinite", "negative", f"over {most:g}"):
        if what == "infinite":
            bad = np.isinf(column)
        elif what == "negative":
            bad = (column < 0) & (name not in _MAY_BE_NEGATIVE)
        else:
            bad = column > most
        count = int(bad.sum())
        if count:
            cells = f"{count} such cells are" if count > 1 else "it is"
            notes.append(
                f"{table.at(int(np.argmax(bad)))}: column '{name}' is {what}; {cells} treated as missing."
            )
            column[bad] = np.nan
    return notes
