"""Histories of several places on one clock, cut to the time that all of them cover. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from cloud.spot.history import History


@dataclass(frozen=True)
class Timeline:
    """Capacities of all places, which change together at `times_s`.

    `capacity[i]` has the VMs that fit at each place from `times_s[i]` until `times_s[i + 1]`, the last one until
    `end_s`. Times are seconds of the histories' own zeros.
    """

    places: tuple[str, ...]
    times_s: tuple[float, ...]
    capacity: tuple[tuple[int, ...], ...]
    end_s: float

    @property
    def duration_s(self) -> float:
        """From the first time to the end."""
        return self.end_s - self.times_s[0]


def covered(histories: Mapping[str, History]) -> tuple[float, float]:
    """The time that every history covers, if their zeros are the same moment. Empty if the end is not the later one."""
    begins = max(history.times_s[0] for history in histories.values())
    return begins, min(history.end_s for history in histories.values())


def timeline(histories: Mapping[str, History], from_s: float, until_s: float) -> Timeline:
    """Cut histories by place to this time. Raises ValueError unless it is not empty and every history covers it."""
    first_s, last_s = covered(histories)
    if not first_s <= from_s < until_s <= last_s:
        raise ValueError("every history must cover the whole time, which must not be empty")
    edges = {t for history in histories.values() for t in history.times_s if from_s < t < until_s}
    times: list[float] = []
    rows: list[tuple[int, ...]] = []
    for at_s in (from_s, *sorted(edges)):
        row = tuple(h.capacity[bisect_right(h.times_s, at_s) - 1] for h in histories.values())
        if not rows or row != rows[-1]:
            times.append(at_s)
            rows.append(row)
    return Timeline(tuple(histories), tuple(times), tuple(rows), until_s)


def segments(line: Timeline) -> list[tuple[float, float, tuple[int, ...]]]:
    """Begin, end and capacities of each stretch without a change."""
    edges = (*line.times_s, line.end_s)
    return [(a, b, row) for (a, b), row in zip(itertools.pairwise(edges), line.capacity, strict=True)]
