"""Faults of a provider's API and of the controller's machine, on request or at random within time windows.

Every fault is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

Fault = Literal[
    "lost_reply",  # the call took effect, but no answer came: AmbiguousError
    "lost_request",  # the call had no effect, and no answer came: AmbiguousError too
    "slow_reply",  # the answer comes after every deadline
    "created_but_error",  # against the contract: TransientError, but the VM exists
    "created_but_refused",  # against the contract: NoCapacityError, but the VM exists
    "transient",  # TransientError, no effect
    "outage",  # TransientError for every call
    "hidden",  # a new VM is missing from all lists for a while
    "undead",  # terminate succeeds, but the VM runs on for a while (or until it is called again)
    "stale",  # an outdated list
    "duplicate",  # a list with every VM twice, out of order
    "skew",  # the provider's clock is wrong
    "partial",  # a list without some VMs: different ones each time, or (size above 100 s) the same ones
    "broken",  # the provider's code raises a Python error, before or after the call took effect
    "late_request",  # no answer came, and the call takes effect later unless the VM is ended before
    "late_reply",  # the answer to a request that was given up arrives after all
    "doubled_reply",  # the answer to a request arrives twice
    "monitor_death",  # the monitor's program dies
    "store_busy",  # the controller's database is locked by another process
    "store_io",  # the controller's disk fails
    "disk_full",  # the controller's disk is full; size 1: except for the space that the run has reserved
]
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, slots=True)
class Window:
    """A time window in which a fault may occur."""

    fault: Fault
    from_s: float
    until_s: float
    chance: float = 1.0  # probability for each call that it can affect
    size_s: float = 60.0  # hidden, undead: duration; skew: offset


class Faults:
    """Decides whether a fault occurs now. `counts` is how often each has occurred."""

    def __init__(self, windows: Iterable[Window] = (), seed: int | str = 0) -> None:
        self.counts: Counter[Fault] = Counter()
        self._random = Random(f"faults {seed}")
        self._windows: dict[Fault, list[Window]] = {}
        for window in windows:
            self.add(window)
        self._wanted: Counter[Fault] = Counter()
        self._sizes: dict[Fault, float] = {}

    def add(self, window: Window) -> None:
        """Add a window."""
        self._windows.setdefault(window.fault, []).append(window)

    def demand(self, fault: Fault, times: int = 1, size_s: float = 60.0) -> None:
        """Make the fault affect the next `times` calls that it can affect."""
        self._wanted[fault] += times
        self._sizes[fault] = size_s

    def strike(self, fault: Fault, now_s: float) -> float | None:
        """Return the fault's size in seconds if it affects a call made now, else None."""
        if self._wanted.get(fault):
            self._wanted[fault] -= 1
            self.counts[fault] += 1
            return self._sizes[fault]
        for window in self._windows.get(fault, ()):
            if window.from_s <= now_s < window.until_s and self._random.random() < window.chance:
                self.counts[fault] += 1
                return window.size_s
        return None

    def any_until(self, now_s: float) -> float:
        """Return when the last window that is open now ends; `now_s` if none is open."""
        open_now = [w.until_s for ws in self._windows.values() for w in ws if w.from_s <= now_s < w.until_s]
        return max(open_now, default=now_s)
