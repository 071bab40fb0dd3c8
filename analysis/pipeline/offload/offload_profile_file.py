"""A two-stage profile as two texts: a head in JSON, and a CSV with a row for each sample.

The head has the fields of `analysis.pipeline.offload.offload_profile.Head`, and `schema_version`. Columns of the CSV: key,
raw_bytes, of each operation NAME_bytes and NAME_s, of each codec CODEC:OPS_bytes, CODEC:OPS_write_s and CODEC:OPS_read_s.
"""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from analysis.pipeline.offload.offload_profile import Head, MeasuredCodec, OffloadProfile
from analysis.pipeline.offload.sample_profile import SampleProfile
from metrics.stats import Estimate

SCHEMA_VERSION = 1
_MOST = 1e15
"""Of a value in the CSV, in bytes or seconds."""
_HEAD = TypeAdapter(Head)


class OffloadProfileFileError(Exception):
    """The texts are not such a profile; the message says what is wrong first, as a part of a sentence."""


def head_document(head: Head) -> dict[str, Any]:
    """The head in JSON types, with what stage 1 says: `io_bound` in `stage_1`."""
    fields: dict[str, Any] = _HEAD.dump_python(head, mode="json")
    fields["stage_1"]["io_bound"] = head.stage_1.io_bound.value
    return {"schema_version": SCHEMA_VERSION, **fields}


def to_texts(profile: OffloadProfile) -> tuple[str, str]:
    """The head and the CSV."""
    head = json.dumps(head_document(profile.head), indent=2, allow_nan=False) + "\n"
    file = io.StringIO()
    # Keys are always quoted: a name in a tar may hold anything.
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(_columns(profile.head))
    for row, key in enumerate(profile.samples.keys):
        writer.writerow([key, *(_shortest(float(column[row])) for column in _values(profile))])
    return head, file.getvalue()


def from_texts(head_text: str, samples_text: str) -> OffloadProfile:
    """Parse what `to_texts` wrote; unknown keys of the head are ignored. Raises OffloadProfileFileError."""
    head = _parsed_head(head_text)
    keys, values = _parsed_rows(samples_text, _columns(head))
    if len(keys) != head.samples:
        raise OffloadProfileFileError(
            f"it has {len(keys)} samples, and its head says {head.samples}; a part of it is missing"
        )
    m = len(head.ops)
    table = np.array(values)
    ops, codecs = table[:, 1 : 1 + 2 * m], table[:, 1 + 2 * m :]
    try:
        return OffloadProfile(
            head,
            SampleProfile(keys, head.ops, table[:, 0], ops[:, 0::2], ops[:, 1::2]),
            tuple(
                MeasuredCodec(place, *(codecs[:, 3 * at + part] for part in range(3)))
                for at, place in enumerate(head.codecs)
            ),
        )
    except ValueError as error:
        raise OffloadProfileFileError(str(error)) from error


def _parsed_head(text: str) -> Head:
    try:
        fields = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise OffloadProfileFileError(f"no JSON: {error}") from error
    version = fields.pop("schema_version", None) if isinstance(fields, dict) else None
    if version != SCHEMA_VERSION:
        raise OffloadProfileFileError(f"schema_version is {version!r}, not {SCHEMA_VERSION}")
    try:
        head = _HEAD.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise OffloadProfileFileError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    stage = head.stage_1
    for name, rate in (
        ("fetch_sps", stage.fetch_sps),
        ("preprocess_sps", stage.preprocess_sps),
        ("trainer_sps", stage.trainer_sps),
    ):
        if rate is not None and not _is_rate(rate):
            raise OffloadProfileFileError(f"stage_1.{name} is {rate.value:g}, and a rate is above 0")
    if not (head.ops and head.cores >= 1 and stage.workers >= 1):
        raise OffloadProfileFileError("it needs an operation, a core and a worker at least")
    if wrong := [one for one in head.codecs if not 1 <= one.ops <= len(head.ops)]:
        raise OffloadProfileFileError(f"codec {wrong[0].name} follows none of its {len(head.ops)} operations")
    return head


def _parsed_rows(text: str, columns: list[str]) -> tuple[list[str], list[list[float]]]:
    rows: dict[str, list[float]] = {}
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        if next(lines, []) != columns:
            raise OffloadProfileFileError("line 1: the columns are not those of its head")
        for line in lines:
            number = lines.line_num
            if len(line) != len(columns):
                raise OffloadProfileFileError(f"line {number}: {len(line)} values, not {len(columns)}")
            if line[0] in rows:
                raise OffloadProfileFileError(f"line {number}: sample {line[0]} is there twice")
            rows[line[0]] = [
                _number(value, number, column) for value, column in zip(line[1:], columns[1:], strict=True)
            ]
    except csv.Error as error:
        raise OffloadProfileFileError(f"no CSV: {error}") from error
    if not rows:
        raise OffloadProfileFileError("it has no samples")
    if not text.endswith("\n"):
        raise OffloadProfileFileError("its last line is cut")
    return list(rows), list(rows.values())


def _columns(head: Head) -> list[str]:
    found = ["key", "raw_bytes"]
    for op in head.ops:
        found += [f"{op}_bytes", f"{op}_s"]
    for codec in head.codecs:
        found += [f"{codec.name}_bytes", f"{codec.name}_write_s", f"{codec.name}_read_s"]
    return found


def _values(profile: OffloadProfile) -> list[Any]:
    samples = profile.samples
    assert samples.op_s is not None  # checked when the profile was made
    found: list[Any] = [samples.raw_bytes]
    for op in range(len(samples.ops)):
        found += [samples.size_bytes[:, op], samples.op_s[:, op]]
    for codec in profile.codecs:
        found += [codec.size_bytes, codec.write_s, codec.read_s]
    return found


def _shortest(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _number(text: str, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise OffloadProfileFileError(
            f"line {line}: {column} is '{text[:40]}', not a number from 0 to {_MOST:g}"
        )
    return value


def _is_rate(rate: Estimate) -> bool:
    ends = [end for end in (rate.low, rate.high) if end is not None]
    return rate.value > 0 and all(math.isfinite(value) for value in (rate.value, *ends))


def _refused(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refused(text)
