"""Reads the profile that the authors of SOPHON publish (github.com/mengwanguc/sophon): a row per sample, with semicolons.

Columns: index, raw, decoding, original_shape, and an operation each. Sizes are those of pickled Python objects, so each
holds a header of 33 bytes, which is subtracted. A second file of the same columns gives seconds in place of bytes.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.pipeline.offload.sample_profile import SampleProfile

_MOST = 1e15
"""Of a value in a file, in bytes or seconds."""
HEADER_BYTES = 33
"""Of a Python object, in each size."""
_FIXED = ("index", "raw", "original_shape")


class SampleProfileError(Exception):
    """A file is not such a profile; the message gives file and line, the reason and what to do."""


def read_sophon(sizes: Path, times: Path | None = None) -> SampleProfile:
    """Read sizes in bytes and, from `times`, seconds of the same samples. Files may be compressed (.gz).

    Raises SampleProfileError.
    """
    ops, rows, lines = _read(sizes)
    keys = list(rows)
    values = np.array([rows[key] for key in keys]) - HEADER_BYTES
    if (values < 0).any():
        number = int(np.argmax((values < 0).any(axis=1)))
        raise SampleProfileError(
            f"{sizes}:{lines[number]}: a size is below {HEADER_BYTES} bytes, the header that each holds; give the file of sizes"
        )
    profile = SampleProfile(keys, ops, values[:, 0], values[:, 1:])
    if times is None:
        return profile
    if times.exists() and times.samefile(sizes):
        raise SampleProfileError(f"{times}: the times are the file of sizes; give the file of seconds")
    timed_ops, timed, _ = _read(times)
    if timed_ops != ops:
        raise SampleProfileError(
            f"{times}:1: its operations are {', '.join(timed_ops)}, not {', '.join(ops)}; give the times of the same pipeline"
        )
    if lacking := [key for key in keys if key not in timed]:
        raise SampleProfileError(
            f"{times}: it has no times of sample {lacking[0]} ({len(lacking)} of {len(keys)} are missing); give the times of "
            "the same samples"
        )
    return replace(profile, op_s=np.array([timed[key][1:] for key in keys]))


def _read(path: Path) -> tuple[tuple[str, ...], dict[str, list[float]], list[int]]:
    """The operations, by index the values of raw and of each operation, and the samples' lines."""
    hint = "give a profile as SOPHON's authors publish it: index;raw;decoding;original_shape;..."
    rows: dict[str, list[float]] = {}
    numbers: list[int] = []
    try:
        lines = csv.reader(_lines(path), delimiter=";")
        head = [name.strip() for name in next(lines, [])]
        ops = tuple(name for name in head if name and name not in _FIXED)
        if head[:2] != ["index", "raw"] or not ops or len(set(head)) != len(head):
            raise SampleProfileError(f"{path}:1: the first line does not name the columns; {hint}")
        columns = [head.index(name) for name in ("raw", *ops)]
        for line in lines:
            number = lines.line_num
            if not line:
                continue
            if not len(head) - (head[-1] == "") <= len(line) <= len(head):
                raise SampleProfileError(f"{path}:{number}: {len(line)} values, not {len(head)}; {hint}")
            values = [_number(line[column], path, number, head[column]) for column in columns]
            if line[0] in rows:
                raise SampleProfileError(f"{path}:{number}: sample {line[0]} is there twice; remove one line")
            rows[line[0]] = values
            numbers.append(number)
    except (OSError, EOFError, zlib.error) as error:
        raise SampleProfileError(f"{path}: cannot be read ({error}); {hint}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise SampleProfileError(f"{path}: not text with semicolons ({error}); {hint}") from error
    if not rows:
        raise SampleProfileError(f"{path}: it has no samples; {hint}")
    return ops, rows, numbers


def _lines(path: Path) -> Iterator[str]:
    with (
        gzip.open(path, "rt", encoding="utf-8-sig")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8-sig") as file
    ):
        yield from file


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise SampleProfileError(
            f"{path}:{line}: {column} is '{text[:40]}', not a number from 0 to {_MOST:g}; correct the line or remove it"
        )
    return value
