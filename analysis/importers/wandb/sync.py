"""Finds the synchronising steps of a VM. Pure: arrays in, step numbers out.

There are three rules. `epochs`: the step after which the VM's own log shows the next epoch. `opt_step`, the authors'
rule: optimizer steps of at least median + 2 standard deviations. It misses frequent averaging rounds, because they
raise the deviation themselves. `bytes`: the steps in which a burst of bytes was sent. The first rule is used if the log
has the epoch; the authors' rule is then only compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analysis.importers.wandb.clock import filled

_NEAR = 2  # the rows of the two loggers may be offset by this many steps
_LONG = 5.0  # averaging takes at least this many times the local optimizer step
_SHORTEST_S = 0.5  # and at least this many seconds
_BURST = 0.2  # a step that sent less than this fraction of a typical averaging round did not average


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step that ended an epoch on this VM."""

    step: int
    epoch: int  # the epoch that it ended
    averaged: bool  # False: the VM downloaded the state, or the epoch ended without it


@dataclass(frozen=True, slots=True)
class Sync:
    """The epoch boundaries, the rule that found them, and whether the authors' rule agrees (None: not compared)."""

    rule: str
    boundaries: tuple[Boundary, ...]
    agree: bool | None
    authors: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """The averaging steps."""
        return tuple(b.step for b in self.boundaries if b.averaged)


def authors_rule(opt_s: np.ndarray) -> tuple[int, ...]:
    """Return the steps whose optimizer time is at least median + 2 sample standard deviations."""
    if len(opt_s) < 2:
        return ()
    deviation = float(np.std(opt_s, ddof=1))
    if deviation == 0:
        return ()
    return tuple(int(k) for k in np.flatnonzero(opt_s >= np.median(opt_s) + 2 * deviation))


def find_sync(
    opt_s: np.ndarray,
    epoch: np.ndarray,
    end_s: np.ndarray,
    sent_bytes: np.ndarray,
    watched: Sequence[tuple[int, float]] = (),
) -> Sync:
    """Find the synchronising steps of one VM.

    `opt_s`, `epoch` (NaN where not logged), `end_s` (unix) and `sent_bytes` (in and around the optimizer
    step; NaN: unknown) by step; `watched`: (epoch, unix end) of the swarm's epochs by the monitor.
    """
    authors = authors_rule(opt_s)
    if not len(opt_s):
        return Sync("epochs", (), None, ())
    if np.isfinite(epoch).any():
        found = by_epochs(opt_s, epoch, sent_bytes)
        averaged = tuple(b.step for b in found if b.averaged)
        return Sync("epochs", found, authors == averaged, authors)
    inside = [(n, t) for n, t in watched if end_s[0] < t <= end_s[-1] + _slack(watched)]
    long_enough = bool(authors) and min(opt_s[list(authors)]) >= _least(opt_s)
    if long_enough and (len(authors) == len(inside) if watched else authors == tuple(_longest(opt_s))):
        numbers = [n for n, _ in inside] if inside else range(1, len(authors) + 1)
        found = tuple(Boundary(k, n, True) for k, n in zip(authors, numbers, strict=True))
        return Sync("opt_step", found, True if inside else None, authors)
    found = by_bytes(opt_s, end_s, sent_bytes, inside)
    rule = "bytes" if np.nansum(sent_bytes) > 0 else "opt_step"
    return Sync(rule, found, authors == tuple(b.step for b in found), authors)


def by_epochs(opt_s: np.ndarray, epoch: np.ndarray, sent_bytes: np.ndarray) -> tuple[Boundary, ...]:
    """Find the boundaries from the epoch that the VM logs with each step."""
    known = _monotonic(epoch)
    # If the log starts with a later epoch, its first step may be the one that ended the previous epoch.
    rises = [int(k) for k in np.flatnonzero(np.diff(known, prepend=0) > 0)]
    ends: list[tuple[int, int, int]] = []  # (step, the epoch before it, the epoch after it)
    for n, k in enumerate(rises):
        # The epoch may have risen in any of the previous steps without a logged epoch.
        unseen = int(np.argmax(np.isfinite(epoch[:k][::-1]))) if k else 0
        low = max(k - _NEAR - unseen, 0, *([(rises[n - 1] + k) // 2 + 1] if n else []))
        high = min(k + _NEAR, len(opt_s) - 1, *([(k + rises[n + 1]) // 2] if n + 1 < len(rises) else []))
        step = low + int(np.argmax(opt_s[low : high + 1]))
        ends.append((step, int(known[k - 1]) if k else 0, int(known[k])))
    least = _least(np.delete(opt_s, [step for step, _, _ in ends]))
    if ends and rises[0] == 0 and opt_s[ends[0][0]] < least:
        del ends[0]  # the VM was already in this epoch
    sent = [sent_bytes[step] for step, _, _ in ends if np.isfinite(sent_bytes[step])]
    typical = float(np.median(sent)) if len(sent) > 2 else 0.0
    found = [
        Boundary(
            step,
            after,
            bool(after == before + 1 and opt_s[step] >= least and not sent_bytes[step] < _BURST * typical),
        )
        for step, before, after in ends
    ]
    return (*found, *_last(opt_s, epoch, sent_bytes, found))


def _last(
    opt_s: np.ndarray, epoch: np.ndarray, sent_bytes: np.ndarray, found: Sequence[Boundary]
) -> tuple[Boundary, ...]:
    """An averaging round at the very end of the log, after the last logged epoch; () if there is none."""
    known = [b.step for b in found if b.averaged]
    if not known:
        return ()
    shown = int(np.flatnonzero(np.isfinite(epoch))[-1])
    begin = max(min(shown, len(opt_s) - 1 - _NEAR), found[-1].step + 1)
    if begin >= len(opt_s):
        return ()
    step = begin + int(np.argmax(opt_s[begin:]))
    long_enough = opt_s[step] >= np.median(opt_s[known]) / 2
    silent = bool(sent_bytes[step] < np.median(sent_bytes[known]) / 2)
    return (Boundary(step, found[-1].epoch + 1, True),) if long_enough and not silent else ()


def by_bytes(
    opt_s: np.ndarray, end_s: np.ndarray, sent_bytes: np.ndarray, watched: Sequence[tuple[int, float]]
) -> tuple[Boundary, ...]:
    """Find the boundaries from bursts of sent bytes, near the monitor's epoch ends if they are known.

    Without counted bytes the longest optimizer steps are used instead.
    """
    sent = np.where(np.isfinite(sent_bytes), sent_bytes, 0.0)
    if not sent.any():
        if not watched:
            return tuple(Boundary(int(k), n, True) for n, k in enumerate(_longest(opt_s), 1))
        sent = opt_s
    if not watched:
        high = np.flatnonzero((sent >= _BURST * sent.max()) & (opt_s >= _least(opt_s)))
        return tuple(Boundary(int(k), n, True) for n, k in enumerate(high, 1))
    slack = _slack(watched)
    found: list[Boundary] = []
    for number, at in watched:
        near = np.flatnonzero((end_s >= at - slack) & (end_s <= at + slack))
        if len(near):
            step = int(near[np.argmax(sent[near])])
            if not found or step > found[-1].step:
                found.append(Boundary(step, number, True))
    typical = float(np.median([sent[b.step] for b in found])) if found else 0.0
    return tuple(
        Boundary(b.step, b.epoch, bool(sent[b.step] >= _BURST * typical and opt_s[b.step] >= _least(opt_s)))
        for b in found
    )


def _longest(opt_s: np.ndarray) -> np.ndarray:
    """The longest steps. Durations of averaging rounds differ by a factor of at most 1 / _BURST."""
    return np.flatnonzero((opt_s >= _least(opt_s)) & (opt_s >= _BURST * opt_s.max()))


def _least(opt_s: np.ndarray) -> float:
    """The shortest duration of an optimizer step that may have averaged.

    The local step is estimated by the lower quartile: with few steps between averaging rounds the median may be one.
    """
    return max(_LONG * float(np.quantile(opt_s, 0.25)), _SHORTEST_S) if len(opt_s) else _SHORTEST_S


def _slack(watched: Sequence[tuple[int, float]]) -> float:
    """Largest difference in seconds between the end of an epoch on a VM and for the monitor."""
    ends = [t for _, t in watched]
    gaps = [b - a for a, b in pairwise(ends) if b > a]
    return min([30.0, *(0.45 * gap for gap in gaps)])


def _monotonic(epoch: np.ndarray) -> np.ndarray:
    """Each step's epoch, with missing ones filled. If it decreases (restart, noise), the highest so far is used."""
    known = filled(epoch)
    assert known is not None
    return np.maximum.accumulate(known)
