"""Combines a log's clocks, which are truncated to whole seconds and may jump, into one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.importers.wandb.tables import Table, TableError

RUNTIME, UNIX = "_runtime", "_timestamp"  # columns
_APART_S = 2.5  # largest difference between two rows of clocks that are truncated to whole seconds


@dataclass(frozen=True, slots=True)
class Clock:
    """Unix seconds of each row, ascending; the rows (from 0) at which a clock jumped; the clock's resolution."""

    at_s: np.ndarray
    jumps: tuple[int, ...]
    resolution_s: float  # 1.0: truncated to whole seconds; 0.0: finer


def read_clock(table: Table) -> Clock:
    """Return the clock of a log. Raises TableError if it has none."""
    clock = one_clock(table.get(RUNTIME), table.get(UNIX))
    if clock is None:
        raise TableError(table.missing(RUNTIME, f"and no '{UNIX}' either, so its rows have no time"))
    return clock


def one_clock(runtime_s: np.ndarray, unix_s: np.ndarray) -> Clock | None:
    """Combine the log's seconds since its start and its unix time; None if it has neither.

    The time between two rows is that of the run-time clock. If the two clocks disagree, one of them jumped: the one
    that went back, otherwise the one that advanced further; the other one is used. If both went back, no time passed.
    A leap of both clocks counts as time that passed.
    """
    there = [values for values in (filled(runtime_s), filled(unix_s)) if values is not None]
    if not there:
        return None
    run, unix = there[0], there[-1]
    ran, passed = np.diff(run), np.diff(unix)
    apart = np.abs(ran - passed) > _APART_S
    low, high = np.minimum(ran, passed), np.maximum(ran, passed)
    other = np.where(low >= 0, low, np.maximum(high, 0.0))
    step = np.where(apart, other, np.maximum(ran, 0.0))
    jumped = apart | (ran < 0)
    since = np.concatenate([[0.0], np.cumsum(step)])
    whole = bool(np.all(run == np.floor(run)))
    offset = float(np.median(unix - since))
    return Clock(since + offset, tuple(int(k) + 1 for k in np.flatnonzero(jumped)), 1.0 if whole else 0.0)


def step_ends(row_s: np.ndarray, timed_s: np.ndarray, resolution_s: float) -> np.ndarray:
    """Estimate when each step ended, more precisely than the log's clock; unix seconds, ascending.

    `row_s`: the clock, truncated to `resolution_s`, of the row that each step wrote at its end. `timed_s`: the sum of
    its timers, a lower bound of the step's duration. A step ended no earlier than the start of its row's second and
    the end of the previous step plus its own timers, and no later than the end of that second and the end of the next
    step minus its timers. The result is the middle of this interval.
    """
    if not len(row_s):
        return row_s
    total = np.cumsum(timed_s)
    earliest = np.maximum.accumulate(row_s - total) + total
    latest = np.minimum.accumulate((row_s + resolution_s - total)[::-1])[::-1] + total
    return (earliest + latest) / 2


def last_known(values: np.ndarray) -> np.ndarray:
    """For each row the index of the last finite value up to it; -1 before the first."""
    return np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))


def filled(values: np.ndarray) -> np.ndarray | None:
    """Replace missing cells by the previous row's value (at the start by the first known); None without any value."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return None
    last = last_known(values)
    return values[np.where(last < 0, known[0], last)]
