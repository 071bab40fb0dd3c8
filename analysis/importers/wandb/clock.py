"""One clock for a log whose clocks are cut to whole seconds and may jump. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_APART_S = 2.5  # two clocks, each cut to whole seconds, may differ so much between two rows


@dataclass(frozen=True, slots=True)
class Clock:
    """Unix seconds of each row, ascending; rows (counted from 0) at which a clock jumped; its fineness."""

    at_s: np.ndarray
    jumps: tuple[int, ...]
    resolution_s: float  # 1.0: whole seconds, cut; 0.0: finer


def one_clock(runtime_s: np.ndarray, unix_s: np.ndarray) -> Clock | None:
    """Join the log's seconds since its start and its unix time; None when neither is there.

    Between two rows the run-time clock counts. Where the two disagree one of them jumped: the one that
    went back, else the one that went further. Where both went back no time is taken to have passed. A leap
    that both clocks show is time that passed.
    """
    there = [values for values in (_filled(runtime_s), _filled(unix_s)) if values is not None]
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
    """When each step ended, finer than the log's clock, unix seconds ascending.

    `row_s`: the clock, cut to `resolution_s`, of the row that each step wrote at its end; `timed_s`: the sum
    of its timers, which a step lasts at least. So a step ended no earlier than its row's second began and
    than the step before it plus its own timers, and no later than the second's end and than the next step's
    end less that one's timers: the middle of what is left is taken.
    """
    if not len(row_s):
        return row_s
    total = np.cumsum(timed_s)
    earliest = np.maximum.accumulate(row_s - total) + total
    latest = np.minimum.accumulate((row_s + resolution_s - total)[::-1])[::-1] + total
    return (earliest + latest) / 2


def _filled(values: np.ndarray) -> np.ndarray | None:
    """Missing cells take the value of the row before (at the start, of the first known)."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return None
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    return values[np.where(last < 0, known[0], last)]
