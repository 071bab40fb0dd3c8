"""Histories of a spot market: what was taken back, how much there was to rent, at which price.

The file is a CSV with a header, one row an event, in any order; seconds count from the trace's begin:

    at_s,location,event,value
    0,gcp/us-central1/us-central1-a,price,0.1125
    5400,gcp/us-central1/us-central1-a,preempt,3
    7200,gcp/us-central1/us-central1-a,capacity,0

- `price`: a spot VM there costs `value` US dollars an hour from now on; one whose ceiling is lower is taken back;
- `capacity`: at most `value` spot VMs of ours are there from now on, those above it are taken back (the youngest
  first); `inf`: no limit;
- `preempt`: `value` spot VMs there are taken back now, or as many as there are; `inf`: all of them;
- `refuse`: 1: nothing more is rented there (what is there stays), 0: again.

`location` is `cloud/region/zone`, or `*` for every place.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, get_args

TraceKind = Literal["preempt", "capacity", "price", "refuse"]
_COLUMNS = ("at_s", "location", "event", "value")

SAMPLE = Path(__file__).with_name("sample-trace.csv")
"""A synthetic day of ours in three zones; no market's real history."""


class TraceError(Exception):
    """A trace that cannot be read; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happens in a place of the market."""

    at_s: float  # after the trace's begin
    location: str  # "cloud/region/zone", "*": everywhere
    event: TraceKind
    value: Decimal  # US dollars an hour, or a number of VMs; Decimal("Infinity"): all, no limit


def load_trace(path: Path, *, instance: str = "") -> list[TraceEvent]:
    """A trace of ours (CSV) or what `aws ec2 describe-spot-price-history` printed (JSON), in order of time.

    `instance`: of an AWS history only this type's rows. Raises TraceError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if text.lstrip()[:1] in ("{", "["):
        return read_aws(text, instance=instance, name=str(path))
    return read_csv(text.splitlines(), name=str(path))


def read_csv(lines: Iterable[str], name: str = "trace") -> list[TraceEvent]:
    """Events of a CSV in this module's format, in order of time. Raises TraceError naming the line."""
    rows = csv.DictReader(lines)
    missing = [c for c in _COLUMNS if c not in (rows.fieldnames or ())]
    if missing:
        raise TraceError(
            f"{name}: no column {', '.join(missing)}; a trace begins with the line {','.join(_COLUMNS)}"
        )
    events = [_event(row, f"{name}:{number}") for number, row in enumerate(rows, start=2)]
    return sorted(events, key=lambda e: e.at_s)


def _event(row: Mapping[str, str | None], where: str) -> TraceEvent:
    at, location, event, value = (str(row.get(c) or "").strip() for c in _COLUMNS)
    if event not in get_args(TraceKind):
        raise TraceError(f"{where}: '{event}' is no event; write one of {', '.join(get_args(TraceKind))}")
    if not location:
        raise TraceError(f"{where}: no location; write cloud/region/zone, or * for every place")
    try:
        at_s, number = float(at), Decimal(value)
    except (ValueError, InvalidOperation) as error:
        raise TraceError(f"{where}: '{at}' and '{value}' are to be numbers") from error
    if not math.isfinite(at_s) or at_s < 0 or number.is_nan() or number < 0:
        raise TraceError(f"{where}: neither time nor value may be negative or no number")
    if event == "price" and not number.is_finite():
        raise TraceError(f"{where}: a price is a finite number of US dollars an hour")
    if event in ("preempt", "capacity") and number.is_finite() and number != number.to_integral_value():
        raise TraceError(f"{where}: {event} counts VMs: '{value}' is no whole number")
    kind: Any = event
    return TraceEvent(at_s, location, kind, number)


def write_csv(path: Path, events: Sequence[TraceEvent]) -> None:
    """Write events so that `read_csv` gives the same again."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for e in events:
            writer.writerow([repr(e.at_s), e.location, e.event, "inf" if e.value.is_infinite() else e.value])


def read_aws(text: str, *, instance: str = "", name: str = "history") -> list[TraceEvent]:
    """Price events of AWS's spot price history: `{"SpotPriceHistory": [{"AvailabilityZone", "InstanceType",
    "SpotPrice", "Timestamp", ...}]}`, or that list alone. The oldest row is at 0 s.

    A zone's location is `aws/<region>/<zone>`. With more than one instance type in it, `instance` says which.
    Raises TraceError.
    """
    try:
        document: Any = json.loads(text)
        rows = document["SpotPriceHistory"] if isinstance(document, dict) else document
        found = [
            (
                datetime.fromisoformat(str(r["Timestamp"])).timestamp(),
                str(r["AvailabilityZone"]),
                str(r["InstanceType"]),
                Decimal(str(r["SpotPrice"])),
            )
            for r in rows
        ]
    except (ValueError, KeyError, TypeError, InvalidOperation) as error:
        raise TraceError(
            f"{name}: no spot price history of AWS ({error!r}); "
            "make one with: aws ec2 describe-spot-price-history --output json"
        ) from error
    types = sorted({kind for _, _, kind, _ in found})
    if instance:
        found = [row for row in found if row[2] == instance]
    elif len(types) > 1:
        raise TraceError(f"{name}: prices of {', '.join(types)}: say which with --instance")
    if not found:
        raise TraceError(
            f"{name}: no price of {instance or 'anything'} (it has {', '.join(types) or 'no row'})"
        )
    began_s = min(at for at, _, _, _ in found)
    events = [
        TraceEvent(at - began_s, f"aws/{_region(zone)}/{zone}", "price", usd) for at, zone, _, usd in found
    ]
    return sorted(events, key=lambda e: (e.at_s, e.location))


def _region(zone: str) -> str:
    """us-west-2a and the local zone us-west-2-lax-1a are both of us-west-2."""
    found = re.match(r"[a-z]+(-[a-z]+)+-[0-9]+", zone)
    return found.group() if found else zone
