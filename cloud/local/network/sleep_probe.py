"""Check how precisely this machine keeps time: a process of ordinary priority sleeps and records how late it wakes up.

Once a second it also records other signs of a busy machine: the kernel's CPU pressure and the utilization of all cores.
Everything is in pace.csv by second, so that a reader can leave out the start of the peers.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from cloud.local.network import kernel

_PERIOD_S = 0.05
_FORMAT = "dQQ"  # worst lateness, sleeps, sleeps over 10 ms late
_PRESSURE, _STAT = Path("/proc/pressure/cpu"), Path("/proc/stat")


@dataclass
class PaceSecond:
    """One line of pace.csv; an empty share means unknown."""

    second: int  # unix
    sleep_worst_s: float = 0.0
    sleeps: int = 0
    sleeps_late: int = 0  # by more than 10 ms
    pressure_share: float | None = None  # share of the second in which some task waited for a CPU
    busy_share: float | None = None  # utilization of all cores


class Pace:
    """Aggregates sleeps by second. `pressure_us` and `ticks` read the kernel's counters; None: not available."""

    def __init__(
        self, pressure_us: Callable[[], int | None], ticks: Callable[[], tuple[int, int] | None]
    ) -> None:
        self._pressure_us, self._ticks = pressure_us, ticks
        self._row: PaceSecond | None = None
        self._before: tuple[float, int | None, tuple[int, int] | None] | None = None

    def slept(self, now_s: float, late_s: float) -> PaceSecond | None:
        """Record a sleep that ended at `now_s` (unix). Returns the previous second if this sleep completes it."""
        done = None
        if self._row is None or int(now_s) != self._row.second:
            done = self._close(now_s)
            self._row = PaceSecond(int(now_s))
        self._row.sleeps += 1
        self._row.sleeps_late += late_s > 0.01
        self._row.sleep_worst_s = max(self._row.sleep_worst_s, late_s)
        return done

    def _close(self, now_s: float) -> PaceSecond | None:
        read = (now_s, self._pressure_us(), self._ticks())
        before, self._before = self._before, read
        row = self._row
        if row is None or before is None:
            return row
        passed_s = now_s - before[0]
        if read[1] is not None and before[1] is not None and passed_s > 0:
            row.pressure_share = min(1.0, (read[1] - before[1]) / 1e6 / passed_s)
        if read[2] is not None and before[2] is not None and read[2][1] > before[2][1]:
            row.busy_share = (read[2][0] - before[2][0]) / (read[2][1] - before[2][1])
        return row


class SleepProbe:
    """Results of the sleeping process, in memory shared with processes forked after this object was created."""

    def __init__(self, pace: Path) -> None:
        """`pace`: the file to which one line per second is appended."""
        self._pace = pace
        self._shared = mmap.mmap(-1, 4096)

    def run(self) -> None:
        """Sleep and record forever, in a process of its own that ends with its parent."""
        kernel.end_with_parent(signal.SIGKILL)
        worst_s, sleeps, late = 0.0, 0, 0
        parent = os.getppid()
        pace, zero_s = Pace(_pressure_us, _ticks), time.time() - time.monotonic()
        self._write(",".join(f.name for f in fields(PaceSecond)))
        while os.getppid() == parent:
            due = time.monotonic() + _PERIOD_S
            time.sleep(_PERIOD_S)
            now = time.monotonic()
            late_s = now - due
            worst_s, sleeps, late = max(worst_s, late_s), sleeps + 1, late + (late_s > 0.01)
            struct.pack_into(_FORMAT, self._shared, 0, worst_s, sleeps, late)
            done = pace.slept(now + zero_s, late_s)
            if done is not None:
                self._write(",".join(_text(getattr(done, f.name)) for f in fields(PaceSecond)))

    def _write(self, line: str) -> None:
        try:
            with self._pace.open("a") as file:
                file.write(line + "\n")
        except OSError as error:  # a full disk must not stop the probe; a missing second is unknown
            os.write(2, f"sleep probe: cannot write {self._pace}: {error}\n".encode())

    @property
    def worst_s(self) -> float:
        """The longest delay of a sleep of 50 ms."""
        return struct.unpack_from(_FORMAT, self._shared)[0]

    @property
    def over_10ms_share(self) -> float:
        """Share of sleeps that were more than 10 ms late."""
        _, sleeps, late = struct.unpack_from(_FORMAT, self._shared)
        return late / sleeps if sleeps else 0.0


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _pressure_us() -> int | None:
    """Microseconds since boot in which some task waited for a CPU; None: not reported by this kernel."""
    try:
        line = _PRESSURE.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return int(line.rpartition("total=")[2]) if line.startswith("some") else None


def _ticks() -> tuple[int, int] | None:
    """(busy, total) ticks of all cores together since boot; None: not Linux."""
    try:
        numbers = [int(n) for n in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(numbers) - sum(numbers[3:5]), sum(numbers)  # busy: without idle and I/O wait
