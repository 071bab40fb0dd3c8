"""A history of spot capacity at one place, and the facts derived from it. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from cloud.spot.text import LATEST_AT_S


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
    began_at_s: float | None = None  # Unix time of the zero; None: the source has no calendar date
    node_lifetimes_s: tuple[float, ...] | None = None  # complete ones; None: the source names no nodes
    nodes_censored: int | None = None  # lifetimes whose begin or end was not seen
    gaps_s: tuple[tuple[float, float], ...] = ()  # (begin, end) of stretches without observations
    contradicted_lines: tuple[int, ...] = ()  # lines of the source that later lines contradict

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.capacity):
            raise ValueError("a history has at least one time, and one capacity for each")
        edges = (*self.times_s, self.end_s)
        if edges[0] < 0 or any(b <= a for a, b in itertools.pairwise(edges)) or not math.isfinite(self.end_s):
            raise ValueError("the times of a history start at 0 or later and increase strictly")
        if min(self.capacity) < 0:
            raise ValueError("a capacity is 0 or more")
        if (self.node_lifetimes_s is None) != (self.nodes_censored is None):
            raise ValueError("complete and censored lifetimes of nodes are known together or not at all")
        if min(self.node_lifetimes_s or (0.0,)) < 0 or (self.nodes_censored or 0) < 0:
            raise ValueError("lifetimes of nodes, and their number, are 0 or more")
        if self.began_at_s is not None and not 0 <= self.began_at_s <= LATEST_AT_S - self.end_s:
            raise ValueError("the dates of a history are of the years 1970 to 9999")
        if any(not edges[0] <= a < b <= edges[-1] for a, b in self.gaps_s):
            raise ValueError("a gap lies within the history")


@dataclass(frozen=True)
class Facts:
    """Facts of a history. A spell is a stretch of time with capacity; None is unknown.

    Lifetimes are of spells and of nodes whose begin and end were both seen, so they leave out the longest
    ones more often than others. No distribution is assumed.
    """

    duration_s: float
    availability: float  # fraction of the time with capacity
    interruptions: int  # changes from some capacity to none
    median_lifetime_s: float | None  # of spells
    mean_lifetime_s: float | None
    longest_outage_s: float  # within the history; 0 when there was none
    lowest_capacity: int
    highest_capacity: int
    mean_capacity: float  # over time
    capacity_lost: int  # sum of all falls; at least so many VMs were lost
    nodes_complete: int | None
    nodes_censored: int | None
    node_median_lifetime_s: float | None
    node_mean_lifetime_s: float | None
    gap_s: float  # time without observations, which counts with the capacity seen before it
    longest_gap_s: float


def facts(history: History) -> Facts:
    """Derive the facts of one history."""
    spells: list[tuple[bool, float, float]] = []
    edges = (*history.times_s, history.end_s)
    lasted = [end - start for start, end in itertools.pairwise(edges)]
    for (start, end), count in zip(itertools.pairwise(edges), history.capacity, strict=True):
        if spells and spells[-1][0] == (count > 0):
            spells[-1] = (spells[-1][0], spells[-1][1], end)
        else:
            spells.append((count > 0, start, end))
    whole = [end - start for up, start, end in spells[1:-1] if up]
    up_s = math.fsum(end - start for up, start, end in spells if up)
    duration_s = edges[-1] - edges[0]
    nodes = history.node_lifetimes_s
    gaps = [end - start for start, end in history.gaps_s]
    return Facts(
        duration_s=duration_s,
        availability=min(up_s / duration_s, 1.0),
        interruptions=sum(up for up, _, _ in spells[:-1]),
        median_lifetime_s=statistics.median(whole) if whole else None,
        mean_lifetime_s=statistics.fmean(whole) if whole else None,
        longest_outage_s=max((end - start for up, start, end in spells if not up), default=0.0),
        lowest_capacity=min(history.capacity),
        highest_capacity=max(history.capacity),
        mean_capacity=math.fsum(n * s for n, s in zip(history.capacity, lasted, strict=True)) / duration_s,
        capacity_lost=sum(max(a - b, 0) for a, b in itertools.pairwise(history.capacity)),
        nodes_complete=None if nodes is None else len(nodes),
        nodes_censored=history.nodes_censored,
        node_median_lifetime_s=statistics.median(nodes) if nodes else None,
        node_mean_lifetime_s=statistics.fmean(nodes) if nodes else None,
        gap_s=math.fsum(gaps),
        longest_gap_s=max(gaps, default=0.0),
    )
