"""Unix time that only goes forward: a machine's clock that is set while a run goes on must not tear its timeline."""

from __future__ import annotations

import time
from collections.abc import Callable


def ticks_s() -> float:
    """Seconds since some moment of this machine's, by a clock that nobody can set."""
    # With the time the machine slept, where the system can tell: a VM is billed for it.
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def steady_clock(
    wall_s: Callable[[], float] = time.time,
    ticks_s: Callable[[], float] = ticks_s,
    not_before_s: float = 0.0,
) -> Callable[[], float]:
    """Unix seconds as the machine tells them now, or `not_before_s` when that is later, and from then on by
    `ticks_s`, which nobody can set."""
    offset_s = max(wall_s(), not_before_s) - ticks_s()
    return lambda: offset_s + ticks_s()
