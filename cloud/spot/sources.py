"""Every readable source by the name of its format: what it holds, its reader, and how it is recognised. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cloud.spot.bands import InterruptionBands, read_spot_advisor, read_spotinfo
from cloud.spot.formats import (
    looks_like_parcae_trace,
    read_bamboo,
    read_bamboo_counts,
    read_parcae,
    read_parcae_trace,
    read_skypilot,
)
from cloud.spot.history import History
from cloud.spot.prices import PriceHistory, read_aws_prices, read_catalog_prices
from cloud.spot.text import HistoryError, read_json, read_text

Kind = Literal["history", "prices", "bands"]
Record = History | PriceHistory | InterruptionBands


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its kind of record, its reader (name, content, now as Unix time), and one line about it."""

    kind: Kind
    read: Callable[[str, bytes, float], Record]
    form: str


FORMATS: dict[str, Format] = {
    "bamboo": Format("history", lambda n, c, _: read_bamboo(n, c), "ms,add|remove,node"),
    "bamboo-counts": Format("history", read_bamboo_counts, "YYYY-MM-DD, HH:MM:SS, VMs"),
    "parcae": Format("history", lambda n, c, _: read_parcae(n, c), "ms,nodes"),
    "parcae-trace": Format("history", lambda n, c, _: read_parcae_trace(n, c), '[ms, "add", {"nodes"}]'),
    "skypilot": Format("history", lambda n, c, _: read_skypilot(n, c), '{"metadata", "data"}'),
    "aws-prices": Format("prices", read_aws_prices, '{"SpotPriceHistory"}'),
    "skypilot-catalog": Format(
        "prices", lambda n, c, _: read_catalog_prices(n, c), "InstanceType,...,SpotPrice,..."
    ),
    "spot-advisor": Format("bands", lambda n, c, _: read_spot_advisor(n, c), '{"ranges", "spot_advisor"}'),
    "spotinfo": Format("bands", lambda n, c, _: read_spotinfo(n, c), '[{"region", "instance", "range"}]'),
}
"""Every format by its name."""

_LINES = (
    ("bamboo", r"[^,]*,\s*(add|remove)\s*,.*"),
    ("bamboo-counts", r"\d{4}-\d\d-\d\d\s*,.*"),
    ("parcae", r"\s*\d+\s*,\s*\d+\s*"),
)


def recognise(name: str, content: bytes) -> str:
    """The format of a source, by its content. Raises HistoryError."""
    text = read_text(name, content)
    lines = text.splitlines()
    number, first = next(((n, line) for n, line in enumerate(lines, 1) if line.strip()), (1, ""))
    if not first:
        raise HistoryError(f"{name}:1: the file is empty")
    if first.lstrip()[0] in "{[":
        found = "parcae-trace" if looks_like_parcae_trace(first) else _of_json(read_json(name, text))
    else:
        found = next((form for form, pattern in _LINES if re.fullmatch(pattern, first)), "")
        if not found and {"InstanceType", "SpotPrice"} <= set(next(csv.reader([first[:100_000]]), [])):
            found = "skypilot-catalog"
    if not found:
        raise HistoryError(
            f"{name}:{number}: not one of the known formats ({', '.join(FORMATS)}); name one with --format"
        )
    return found


def read_source(name: str, content: bytes, form: str, now_s: float) -> Record:
    """Read a source in the format `form`, a key of `FORMATS`. Raises HistoryError."""
    return FORMATS[form].read(name, content, now_s)


def read_history(name: str, content: bytes, now_s: float) -> History:
    """Read a history of capacity in whatever format it is. Raises HistoryError, also for prices and bands."""
    form = recognise(name, content)
    record = read_source(name, content, form, now_s)
    if not isinstance(record, History):
        raise HistoryError(f"{name}:1: has {FORMATS[form].kind} ({form}), not a history of capacity")
    return record


def _of_json(document: object) -> str:
    """The format of a JSON document; "" for none."""
    if isinstance(document, dict):
        for key, form in (
            ("spot_advisor", "spot-advisor"),
            ("SpotPriceHistory", "aws-prices"),
            ("metadata", "skypilot"),
        ):
            if key in document:
                return form
        return ""
    row = document[0] if isinstance(document, list) and document else None
    if not isinstance(row, dict):
        return ""
    return "aws-prices" if "SpotPrice" in row else "spotinfo" if "range" in row else ""
