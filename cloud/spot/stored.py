"""Imported sources as files of ours: versioned JSON that keeps the record and its source's SHA-256.

The content depends on the source and the options of the import only, so importing again writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from cloud.durable_file import write_durably
from cloud.spot.bands import Band, InterruptionBands
from cloud.spot.history import History
from cloud.spot.prices import PriceHistory, SpotPrice, usd_of
from cloud.spot.sources import FORMATS, Record
from cloud.spot.text import LARGEST_BYTES, HistoryError, read_json, read_text, whole_number

SCHEMA_VERSION = 1
LARGEST_STORED_BYTES = 16 * LARGEST_BYTES  # one byte of a source can become a time and a capacity

_AGAIN = "remove it with `orch spot rm`, then import the source again"
_PRICE = ("at_s", "region", "zone", "instance", "product", "accelerator", "usd_per_h")
_BAND = ("region", "system", "instance", "label", "savings_percent")


@dataclass(frozen=True, slots=True)
class Stored:
    """An imported source: its format, a key of `FORMATS`, and its record."""

    form: str
    record: Record


def read_stored(path: Path) -> History:
    """Read an imported history of capacity. Raises HistoryError, also for prices and bands; OSError."""
    record = read_any(path).record
    if not isinstance(record, History):
        what = "prices" if isinstance(record, PriceHistory) else "interruption bands"
        raise HistoryError(
            f"{path}:1: has {what}, not a history of capacity; `orch spot ls` lists the histories"
        )
    return record


def read_any(path: Path) -> Stored:
    """Read an imported source of any kind. Raises HistoryError, OSError."""
    name = str(path)
    if path.stat().st_size > LARGEST_STORED_BYTES:
        raise HistoryError(f"{name}:1: the file is larger than {LARGEST_STORED_BYTES} bytes")
    found = read_json(name, read_text(name, path.read_bytes(), LARGEST_STORED_BYTES))
    version = found.get("schema_version") if isinstance(found, dict) else None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1 or "spot_format" not in found:
        raise HistoryError(f"{name}:1: not a file of `orch spot import`; {_AGAIN}")
    if version > SCHEMA_VERSION:
        raise HistoryError(
            f"{name}:1: written by a newer orch (format {version}, this orch reads up to {SCHEMA_VERSION}); update orch"
        )
    try:
        return _stored(found)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise HistoryError(
            f"{name}:1: was changed after the import ({type(error).__name__}: {error}); {_AGAIN}"
        ) from None


def write_stored(path: Path, stored: Stored) -> None:
    """Write an imported source atomically and durably. The folder must exist. Raises OSError."""
    write_durably(path, stored_bytes(stored))


def stored_bytes(stored: Stored) -> bytes:
    """The content of the file of an imported source."""
    record = stored.record
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "spot_format": stored.form,
        "source": record.source,
        "sha256": record.sha256,
        "place": record.place,
        "accelerator": record.accelerator,
    }
    match record:
        case History():
            document |= {
                "times_s": record.times_s,
                "capacity": record.capacity,
                "end_s": record.end_s,
                "began_at_s": record.began_at_s,
                "node_lifetimes_s": record.node_lifetimes_s,
                "nodes_censored": record.nodes_censored,
                "gaps_s": record.gaps_s,
                "contradicted_lines": record.contradicted_lines,
            }
        case PriceHistory():
            document["prices"] = [
                [str(value) if isinstance(value, Decimal) else value for value in _values(price, _PRICE)]
                for price in record.prices
            ]
        case InterruptionBands():
            document["bands"] = [_values(band, _BAND) for band in record.bands]
    return (json.dumps(document, allow_nan=False) + "\n").encode()


def _stored(found: Mapping[str, Any]) -> Stored:
    form = _text(found["spot_format"])
    known = FORMATS.get(form)
    if known is None:
        raise ValueError(f"unknown format {form[:40]!r}")
    source, sha256 = _text(found["source"]), _text(found["sha256"])
    place, accelerator = _text_or_none(found["place"]), _text_or_none(found["accelerator"])
    match known.kind:
        case "history":
            lifetimes = found["node_lifetimes_s"]
            record: Record = History(
                source=source,
                sha256=sha256,
                times_s=tuple(_number(value) for value in _list(found["times_s"])),
                capacity=tuple(_whole(value) for value in _list(found["capacity"])),
                end_s=_number(found["end_s"]),
                place=place,
                accelerator=accelerator,
                began_at_s=None if found["began_at_s"] is None else _number(found["began_at_s"]),
                node_lifetimes_s=None if lifetimes is None else tuple(_number(v) for v in _list(lifetimes)),
                nodes_censored=None if found["nodes_censored"] is None else _whole(found["nodes_censored"]),
                gaps_s=tuple((_number(a), _number(b)) for a, b in _list(found["gaps_s"])),
                contradicted_lines=tuple(_whole(value) for value in _list(found["contradicted_lines"])),
            )
        case "prices":
            prices = tuple(_price(_list(row)) for row in _list(found["prices"]))
            record = PriceHistory(source, sha256, prices, place, accelerator)
        case "bands":
            bands = tuple(_band(_list(row)) for row in _list(found["bands"]))
            record = InterruptionBands(source, sha256, bands, place, accelerator)
    return Stored(form, record)


def _price(row: list[Any]) -> SpotPrice:
    at_s, region, zone, instance, product, accelerator, usd = row
    return SpotPrice(
        None if at_s is None else _number(at_s),
        _text(region),
        _text_or_none(zone),
        _text_or_none(instance),
        _text_or_none(product),
        _text_or_none(accelerator),
        usd_of(usd),
    )


def _band(row: list[Any]) -> Band:
    region, system, instance, label, savings = row
    return Band(
        _text(region),
        _text_or_none(system),
        _text(instance),
        _text(label),
        None if savings is None else _whole(savings),
    )


def _values(record: object, names: tuple[str, ...]) -> list[Any]:
    return [getattr(record, name) for name in names]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("a number is missing")
    return value


def _whole(value: object) -> int:
    number = whole_number(value) if isinstance(value, int) else None
    if number is None:
        raise TypeError("a whole number is missing")
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)
