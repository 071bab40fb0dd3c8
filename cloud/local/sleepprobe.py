"""Does this machine keep time? A process of ordinary priority sleeps and notes how late it wakes."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time

from cloud.local import _kernel

__all__ = ["SleepProbe"]

_PERIOD_S = 0.05
_FORMAT = "dQQ"  # worst lateness, sleeps, sleeps over 10 ms late


class SleepProbe:
    """Figures of the sleeping process, in memory shared with whoever was forked after this was made."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 4096)

    def run(self) -> None:
        """Sleep and note for ever (in a process of its own, ended with its parent)."""
        _kernel.end_with_parent(signal.SIGKILL)
        worst_s, sleeps, late = 0.0, 0, 0
        parent = os.getppid()
        while os.getppid() == parent:
            due = time.monotonic() + _PERIOD_S
            time.sleep(_PERIOD_S)
            late_s = time.monotonic() - due
            worst_s, sleeps, late = max(worst_s, late_s), sleeps + 1, late + (late_s > 0.01)
            struct.pack_into(_FORMAT, self._shared, 0, worst_s, sleeps, late)

    @property
    def worst_s(self) -> float:
        """The longest a sleep of 50 ms was stretched."""
        return struct.unpack_from(_FORMAT, self._shared)[0]

    @property
    def over_10ms_share(self) -> float:
        """Share of sleeps stretched by more than 10 ms."""
        _, sleeps, late = struct.unpack_from(_FORMAT, self._shared)
        return late / sleeps if sleeps else 0.0
