"""What a provider's API and the controller's machine do wrong, on demand or by chance within windows of time.

Every fault is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

Fault = Literal[
    "lost_reply",  # it happened, no answer came: AmbiguousError
    "lost_request",  # it did not happen, and no answer came: AmbiguousError all the same
    "slow_reply",  # the answer comes after every deadline
    "created_but_error",  # against the contract: TransientError, and the VM is there
    "created_but_refused",  # against the contract: NoCapacityError, and the VM is there
    "transient",  # TransientError, nothing happened
    "outage",  # nothing answers: TransientError for every call
    "hidden",  # a new VM is in no listing for a while
    "undead",  # terminate says ok, and the VM lives on for a while (or until it is asked again)
    "stale",  # a listing of a while ago
    "duplicate",  # a listing with its VMs twice, out of order
    "skew",  # the provider's clock is wrong
    "partial",  # a listing that lacks VMs: other ones each time, or (size above 100 s) the same ones
    "broken",  # the provider's code raises something of Python's, before or after it did what it should
    "late_request",  # no answer came, and it happens later, unless the VM is ended before
    "late_reply",  # the answer to a request that was given up comes all the same
    "doubled_reply",  # the answer to a request comes twice
    "monitor_death",  # the monitor's program dies
    "store_busy",  # the controller's own database is locked by somebody else
    "store_io",  # its disk fails
    "disk_full",  # its disk has no room; size 1: but for what the run has kept
]
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, slots=True)
class Window:
    """A fault that may strike from one time to another."""

    fault: Fault
    from_s: float
    until_s: float
    chance: float = 1.0  # of each call it could strike
    size_s: float = 60.0  # hidden, undead: for how long; skew: by how much


class Faults:
    """Decides whether a fault strikes now. `counts` says how often each did."""

    def __init__(self, windows: Iterable[Window] = (), seed: int | str = 0) -> None:
        self.counts: Counter[Fault] = Counter()
        self._random = Random(f"faults {seed}")
        self._windows: dict[Fault, list[Window]] = {}
        for window in windows:
            self.add(window)
        self._wanted: Counter[Fault] = Counter()
        self._sizes: dict[Fault, float] = {}

    def add(self, window: Window) -> None:
        """One more window."""
        self._windows.setdefault(window.fault, []).append(window)

    def demand(self, fault: Fault, times: int = 1, size_s: float = 60.0) -> None:
        """The next `times` calls that it can strike are struck."""
        self._wanted[fault] += times
        self._sizes[fault] = size_s

    def strike(self, fault: Fault, now_s: float) -> float | None:
        """The fault's size in seconds when it strikes a call made now, None when it does not."""
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
        """When the last window that is open now ends; `now_s` when none is."""
        open_now = [w.until_s for ws in self._windows.values() for w in ws if w.from_s <= now_s < w.until_s]
        return max(open_now, default=now_s)
