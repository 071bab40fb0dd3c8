"""What makes an imported source doubtful, as codes with a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cloud.spot.bands import InterruptionBands, band_facts
from cloud.spot.history import History, facts
from cloud.spot.prices import PriceHistory, price_facts
from cloud.spot.sources import Record

Code = Literal[
    "identical_bytes",  # another import has the same bytes
    "identical_history",  # another import has the same times and capacities
    "contradictions",  # the source states different values for one time
    "future",  # it ends after now
    "gaps",  # stretches without observations
    "no_complete_lifetime",  # nodes are named, but no lifetime is known in full
]


@dataclass(frozen=True, slots=True)
class SpotWarning:
    """A doubt about one import."""

    code: Code
    text: str


def warnings(record: Record, others: Mapping[str, Record], now_s: float) -> tuple[SpotWarning, ...]:
    """The doubts about a record; `others` are the other imports by name, `now_s` is Unix time."""
    found: list[SpotWarning] = []
    same = sorted(name for name, other in others.items() if other.sha256 == record.sha256)
    if same:
        found.append(
            SpotWarning("identical_bytes", f"{', '.join(same)} has the same bytes: it is the same data")
        )
    match record:
        case History():
            alike = sorted(
                name
                for name, other in others.items()
                if name not in same and isinstance(other, History) and _alike(record, other)
            )
            if alike:
                text = f"{', '.join(alike)} has the same times and capacities: it is the same data in another form"
                found.append(SpotWarning("identical_history", text))
            found += _of_history(record)
            last_s = None if record.began_at_s is None else record.began_at_s + record.end_s
        case PriceHistory():
            stated = price_facts(record)
            last_s = stated.last_at_s
            if stated.contradictions:
                text = f"{stated.contradictions} prices differ from another price of the same offer and time"
                found.append(SpotWarning("contradictions", text))
        case InterruptionBands():
            last_s = None
            contradictions = band_facts(record).contradictions
            if contradictions:
                text = f"{contradictions} bands differ from another band of the same region and instance type"
                found.append(SpotWarning("contradictions", text))
    if last_s is not None and last_s > now_s:
        found.append(
            SpotWarning(
                "future", f"it ends at {datetime.fromtimestamp(last_s, UTC):%Y-%m-%d %H:%M} UTC, after now"
            )
        )
    return tuple(found)


def _of_history(history: History) -> list[SpotWarning]:
    found: list[SpotWarning] = []
    seen = facts(history)
    if history.contradicted_lines:
        text = (
            f"{len(history.contradicted_lines)} lines (the first: line {history.contradicted_lines[0]}) state "
            "another capacity than later lines do for the same time; the later lines count"
        )
        found.append(SpotWarning("contradictions", text))
    if history.gaps_s:
        text = (
            f"nothing is recorded for {len(history.gaps_s)} stretches of {seen.gap_s / 3600:.1f} h in all, the "
            f"longest {seen.longest_gap_s / 3600:.1f} h; the capacity before each is taken to have lasted"
        )
        found.append(SpotWarning("gaps", text))
    if seen.nodes_complete == 0:
        text = f"no lifetime of a node is known in full: of {seen.nodes_censored} the begin or the end was not seen"
        found.append(SpotWarning("no_complete_lifetime", text))
    return found


def _alike(one: History, other: History) -> bool:
    return (one.times_s, one.capacity, one.end_s) == (other.times_s, other.capacity, other.end_s)
