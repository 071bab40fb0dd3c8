"""Timing of training steps: phases measured on one clock, which add up to the step by construction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from metrics.records import PHASES, StepRecord

_TIMED = tuple(name for name in PHASES if name != "other")
_STRETCHED = 0.02  # overrun, as a fraction of the requested time, above which there is a warning


class StepClock:
    """Times consecutive training steps on one monotonic clock.

    A step begins where the last one ended, so no time is lost between steps. `phase(name)` charges its block to that
    phase; the remaining time is `other`. Phases do not nest. `ended` is called with a phase's name, start and end on the
    monotonic clock.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        ended: Callable[[str, float, float], None] | None = None,
    ) -> None:
        self._clock, self._wall_clock, self._ended = clock, wall_clock, ended
        self._inside: str | None = None
        self._number = 0
        self.restart()

    def restart(self) -> None:
        """Begin a step now. The time since the end of the last step is not counted."""
        self._began, self._began_wall = self._clock(), self._wall_clock()
        self._seconds = dict.fromkeys(_TIMED, 0.0)

    @property
    def began(self) -> float:
        """Start of the running step on the monotonic clock."""
        return self._began

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the block to the phase `name`. Raises ValueError for an unknown phase or nested phases."""
        if name not in self._seconds:
            raise ValueError(f"{name!r} is not a phase of a step: {', '.join(_TIMED)}")
        if self._inside is not None:
            raise ValueError(f"phase {name!r} inside phase {self._inside!r}: seconds would count twice")
        self._inside, began = name, self._clock()
        try:
            yield
        finally:
            now = self._clock()
            self._seconds[name] += now - began
            self._inside = None
            if self._ended is not None:
                self._ended(name, began, now)

    def move_to_sync(self) -> None:
        """Reassign the optimizer time of this step to `optimizer_sync`: it turned out to be the synchronising step."""
        self._seconds["optimizer_sync"] += self._seconds["optimizer_local"]
        self._seconds["optimizer_local"] = 0.0

    def finish(self, vm: str, epoch: int, samples: int) -> StepRecord:
        """End the step and begin the next one. `samples`: this peer's samples in the step."""
        now, now_wall = self._clock(), self._wall_clock()
        wall = now - self._began
        self._number += 1
        record = StepRecord(
            vm=vm,
            step=self._number,
            epoch=epoch,
            began_s=self._began_wall,
            wall_s=wall,
            other_s=wall - sum(self._seconds.values()),
            samples=samples,
            **{f"{name}_s": seconds for name, seconds in self._seconds.items()},
        )
        self._began, self._began_wall = now, now_wall
        self._seconds = dict.fromkeys(_TIMED, 0.0)
        return record


@dataclass
class EpochTimes:
    """Sums over the steps of one epoch. Communication is the synchronising optimizer time plus the hidden round time."""

    began_s: float  # unix time
    steps: int = 0
    samples: int = 0
    wall_s: float = 0.0
    paused_s: float = 0.0  # between steps, ordered by the controller
    overlapped_s: float = 0.0  # part of the round during which this peer calculated (`swarm.overlap`)
    phases_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def add(self, step: StepRecord) -> None:
        """Count one step."""
        self.steps += 1
        self.samples += step.samples
        self.wall_s += step.wall_s
        for name in PHASES:
            self.phases_s[name] += getattr(step, f"{name}_s")

    @property
    def comm_s(self) -> float:
        """Wall seconds of the round: the synchronising optimizer step plus the part overlapped with calculation."""
        return self.phases_s["optimizer_sync"] + self.overlapped_s

    @property
    def calc_s(self) -> float:
        """Wall seconds of the epoch without the synchronising optimizer step."""
        return self.wall_s - self.phases_s["optimizer_sync"]


class Padding:
    """Extends a phase to the time it takes on the modelled accelerator.

    Each phase is padded from its own beginning. The next phase does not compensate for an overrun: it is real time,
    counted in `overrun_s` next to `asked_s`, so that a host that is too slow for the emulation is detected.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock, self._sleep = clock, sleep
        self.asked_s = 0.0
        self.overrun_s = 0.0
        self.worst_s = 0.0

    @contextmanager
    def to(self, seconds: float) -> Iterator[None]:
        """Run the block, then sleep until `seconds` after its start (0: no padding)."""
        began = self._clock()
        yield
        if seconds <= 0.0:
            return
        while (left := began + seconds - self._clock()) > 0.0:
            self._sleep(left)
        late = self._clock() - began - seconds
        self.asked_s += seconds
        self.overrun_s += late
        self.worst_s = max(self.worst_s, late)

    @property
    def warning(self) -> str | None:
        """Warning for the user if the host was too busy for the emulated times; else None."""
        if self.asked_s <= 0.0 or self.overrun_s <= _STRETCHED * self.asked_s:
            return None
        share, worst_ms = 100.0 * self.overrun_s / self.asked_s, 1000.0 * self.worst_s
        return (
            f"padded phases took {share:.1f} % longer than requested (worst {worst_ms:.0f} ms): host too busy"
        )
