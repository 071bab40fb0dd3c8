"""A history of spot capacity at one place, and the facts derived from it. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class History:
    """Capacity as a step function of time.

    `capacity[i]` VMs are alive (or can be had: 1, or not: 0) from `times_s[i]` until `times_s[i + 1]`,
    the last one until `end_s`. Times are seconds since the history's own zero. Raises ValueError unless
    times increase strictly from at least 0, end after the last of them, and capacities are 0 or more.
    """

    source: str
    sha256: str  # of the source's bytes
    times_s: tuple[float, ...]
    capacity: tuple[int, ...]
    end_s: float
    place: str | None = None
    accelerator: str | None = None

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.capacity):
            raise ValueError("a history has at least one time, and one capacity for each")
        edges = (*self.times_s, self.end_s)
        if edges[0] < 0 or any(b <= a for a, b in itertools.pairwise(edges)):
            raise ValueError("the times of a history start at 0 or later and increase strictly")
        if min(self.capacity) < 0:
            raise ValueError("a capacity is 0 or more")


@dataclass(frozen=True)
class Facts:
    """Facts of a history. A spell is a stretch of time with capacity; None is unknown.

    Lifetimes are of spells whose begin and end were both seen, so they leave out the longest ones more
    often than others. No distribution is assumed.
    """

    availability: float  # fraction of the time with capacity
    interruptions: int  # changes from some capacity to none
    median_lifetime_s: float | None
    mean_lifetime_s: float | None
    longest_outage_s: float  # within the history; 0 when there was none


def facts(history: History) -> Facts:
    """Derive the facts of one history."""
    spells: list[tuple[bool, float, float]] = []
    ends = (*history.times_s[1:], history.end_s)
    for start, end, count in zip(history.times_s, ends, history.capacity, strict=True):
        if spells and spells[-1][0] == (count > 0):
            spells[-1] = (spells[-1][0], spells[-1][1], end)
        else:
            spells.append((count > 0, start, end))
    whole = [end - start for up, start, end in spells[1:-1] if up]
    up_s = sum(end - start for up, start, end in spells if up)
    return Facts(
        availability=up_s / (history.end_s - history.times_s[0]),
        interruptions=sum(up for up, _, _ in spells[:-1]),
        median_lifetime_s=statistics.median(whole) if whole else None,
        mean_lifetime_s=statistics.fmean(whole) if whole else None,
        longest_outage_s=max((end - start for up, start, end in spells if not up), default=0.0),
    )


def identical_sources(histories: Iterable[History]) -> list[tuple[str, ...]]:
    """Names of sources with the same bytes, in order of appearance: each group has at least two."""
    names: dict[str, list[str]] = {}
    for history in histories:
        names.setdefault(history.sha256, []).append(history.source)
    return [tuple(group) for group in names.values() if len(group) > 1]
