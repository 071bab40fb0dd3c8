"""Traces of a spot market: preemptions, capacity and prices over time.

The file is a CSV with a header and one event per row, in any order. Seconds count from the start of the trace:

    at_s,location,event,value
    0,gcp/us-central1/us-central1-a,price,0.1125
    5400,gcp/us-central1/us-central1-a,preempt,3
    7200,gcp/us-central1/us-central1-a,capacity,0

- `price`: from now on a spot VM there costs `value` US dollars per hour; VMs with a lower price ceiling are preempted;
- `capacity`: from now on at most `value` of the run's spot VMs fit there; the youngest above it are preempted; `inf`: no
  limit;
- `preempt`: `value` spot VMs there are preempted now, or as many as there are; `inf`: all of them;
- `refuse`: 1: no further VM is rented there (existing ones stay), 0: VMs are rented again.

`location` is `cloud/region/zone`, or `*` for every place.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, get_args

from cloud.spot.prices import read_aws_prices
from cloud.spot.text import HistoryError

TraceKind = Literal["preempt", "capacity", "price", "refuse"]
_COLUMNS = ("at_s", "location", "event", "value")

SAMPLE = Path(__file__).with_name("sample-trace.csv")
"""A synthetic day in three zones, made for this project; not the history of a real market."""


class TraceError(Exception):
    """A trace that cannot be read; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event in one place of the market."""

    at_s: float  # since the start of the trace
    location: str  # "cloud/region/zone", "*": everywhere
    event: TraceKind
    value: Decimal  # US dollars an hour, or a number of VMs; Decimal("Infinity"): all, no limit


def load_trace(path: Path, *, instance: str = "") -> list[TraceEvent]:
    """Read a trace in this module's format (CSV) or the JSON output of `aws ec2 describe-spot-price-history`, by time.

    `instance`: read only the rows of this type from an AWS history. Raises TraceError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if text.lstrip()[:1] in ("{", "["):
        return read_aws(text, instance=instance, name=str(path))
    return read_csv(text.splitlines(), name=str(path))


def read_csv(lines: Iterable[str], name: str = "trace") -> list[TraceEvent]:
    """Read the events of a CSV in this module's format, sorted by time. Raises TraceError naming the line."""
    rows = csv.DictReader(lines)
    missing = [c for c in _COLUMNS if c not in (rows.fieldnames or ())]
    if missing:
        raise TraceError(
            f"{name}: missing columns: {', '.join(missing)}; a trace begins with the line {','.join(_COLUMNS)}"
        )
    events = [_event(row, f"{name}:{number}") for number, row in enumerate(rows, start=2)]
    return sorted(events, key=lambda e: e.at_s)


def _event(row: Mapping[str, str | None], where: str) -> TraceEvent:
    at, location, event, value = (str(row.get(c) or "").strip() for c in _COLUMNS)
    if event not in get_args(TraceKind):
        raise TraceError(f"{where}: '{event}' is not an event; write one of {', '.join(get_args(TraceKind))}")
    if not location:
        raise TraceError(f"{where}: no location; write cloud/region/zone, or * for every place")
    try:
        at_s, number = float(at), Decimal(value)
    except (ValueError, InvalidOperation) as error:
        raise TraceError(f"{where}: '{at}' and '{value}' must be numbers") from error
    if not math.isfinite(at_s) or at_s < 0 or number.is_nan() or number < 0:
        raise TraceError(f"{where}: time and value must be numbers and not negative")
    if event == "price" and not number.is_finite():
        raise TraceError(f"{where}: a price must be a finite number of US dollars per hour")
    if event in ("preempt", "capacity") and number.is_finite() and number != number.to_integral_value():
        raise TraceError(f"{where}: {event} counts VMs: '{value}' is not a whole number")
    kind: Any = event
    return TraceEvent(at_s, location, kind, number)


def read_aws(text: str, *, instance: str = "", name: str = "history") -> list[TraceEvent]:
    """Read price events from AWS's spot price history, sorted by time. The oldest row is at 0 s.

    Expects `{"SpotPriceHistory": [{"AvailabilityZone", "InstanceType", "SpotPrice", "Timestamp", ...}]}`, or only the
    list. The location of a zone is `aws/<region>/<zone>`. If the history has several instance types, `instance` selects
    one. Raises TraceError.
    """
    try:
        found = read_aws_prices(name, text.encode()).prices
    except HistoryError as error:
        raise TraceError(
            f"{error}; create one with: aws ec2 describe-spot-price-history --output json"
        ) from error
    types = sorted({price.instance or "" for price in found})
    if instance:
        found = tuple(price for price in found if price.instance == instance)
    elif len(types) > 1:
        raise TraceError(f"{name}: prices of {', '.join(types)}; select one with --instance")
    if not found:
        raise TraceError(f"{name}: no prices of {instance} (it has {', '.join(types)})")
    times = [price.at_s or 0.0 for price in found]
    began_s = min(times)
    events = [
        TraceEvent(at_s - began_s, f"aws/{price.region}/{price.zone}", "price", price.usd_per_h)
        for at_s, price in zip(times, found, strict=True)
    ]
    return sorted(events, key=lambda e: (e.at_s, e.location))
