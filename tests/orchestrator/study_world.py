"""In-memory runs for a study, with scripted ends, a virtual clock, and faults at any step.

Every call of the launcher and every write of the journal is a step. The world survives the study's process, as real
runs do. How a run ends depends on its job and on how many runs of that job have ended by themselves before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.study.core import Attempt, Ended, Job, StudyEvent, StudyState
from orchestrator.study.runner import Inspection, RunError, StudyRunner, Watched
from orchestrator.study.verdict import Disturbance

Fault = Literal["kill", "kill all", "interrupt"]
VOID = ("interrupted", "lost")


class Died(BaseException):
    """kill -9 of the study."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ends: "refused" (does not start), "hangs", "done", "failed", "stopped", ..."""

    status: str
    disturbances: Mapping[Disturbance, str] = field(default_factory=dict)

    @property
    def disturbed(self) -> tuple[str, ...]:
        return tuple(self.disturbances.values())


@dataclass
class _Run:
    end: RunEnd  # how it ends unless it is torn down
    state: Literal["made", "running", "ended", "lost"] = "made"  # "made": it has no controller yet
    status: str = ""


class Quiet:
    """A listener that does nothing."""

    def begins(self, state: StudyState, job: Job, attempt: int, run_id: str) -> None: ...

    def ended(self, state: StudyState, job: Job, attempt: Attempt) -> None: ...


@dataclass
class StudyWorld:
    """Journal, launcher and clock."""

    ends: dict[str, Sequence[RunEnd]]  # by job, in order; the last one repeats
    faults: dict[int, Fault] = field(default_factory=dict)  # by step
    events: list[StudyEvent] = field(default_factory=list)
    runs: dict[str, _Run] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    overlapped: bool = False
    steps: int = 0
    now: float = 0.0

    def now_s(self) -> float:
        """Advance by a second per call."""
        self.now += 1.0
        return self.now

    def pass_s(self, seconds: float) -> None:
        """Let time pass between two processes of the study: running runs end, unless `seconds` is 0."""
        self.now += seconds
        for run in self.runs.values():
            if seconds and run.state == "running" and run.end.status != "hangs":
                run.state, run.status = "ended", run.end.status

    @property
    def going(self) -> bool:
        """Whether a run has not ended."""
        return any(run.state in ("made", "running") for run in self.runs.values())

    def _step(self) -> None:
        self.steps += 1
        match self.faults.get(self.steps):
            case "kill":
                raise Died
            case "kill all":
                for run in self.runs.values():
                    run.state = "lost" if run.state == "running" else run.state
                raise Died
            case "interrupt":
                raise KeyboardInterrupt
            case None:
                pass

    # the journal

    def append(self, event: StudyEvent) -> None:
        self._step()
        self.events.append(event)
        self._step()

    # the launcher

    def inspect(self, run_id: str) -> Inspection:
        run = self.runs.get(run_id)
        return Inspection("absent") if run is None else Inspection(run.state, run.status)

    def start(self, job: Job, run_id: str) -> None:
        self._step()
        counted = [
            e for e in self.events if isinstance(e, Ended) and e.job == job.key and e.status not in VOID
        ]
        script = self.ends.get(job.key, (RunEnd("done"),))
        end = script[min(len(counted), len(script) - 1)]
        if end.status == "refused":
            raise RunError("refused")
        self.made[run_id] += 1
        self.overlapped = self.overlapped or self.going
        run = self.runs[run_id] = _Run(end)
        try:
            self._step()
            run.state = "running"
            self._step()
        except KeyboardInterrupt:
            self._down(run)
            raise

    def watch(self, job: Job, run_id: str, until_s: float) -> Watched:
        run = self.runs[run_id]
        if run.state == "made":
            run.state = "running"
        try:
            self._step()
        except KeyboardInterrupt:
            self._down(run)
            self._step()
            return Watched("taken_down")
        if run.state == "lost":
            raise RunError("gone")
        if run.end.status == "hangs" or self.now >= until_s:
            self.now = max(self.now, until_s)
            return Watched("expired")
        run.state, run.status = "ended", run.end.status
        self._step()
        return Watched("ended")

    def take_down(self, run_id: str, why: str) -> None:
        self._step()
        self._down(self.runs[run_id])
        self._step()

    def disturbances(self, run_id: str) -> Mapping[Disturbance, str]:
        return self.runs[run_id].end.disturbances

    def _down(self, run: _Run) -> None:
        if run.state != "ended":
            run.state, run.status = "ended", "stopped"


def job(key: str, planned_s: float | None = 100.0) -> Job:
    """A job with that key."""
    return Job(key, key, "", planned_s, 500.0)


def runner_of(world: StudyWorld, jobs: Sequence[Job], retries: int = 2) -> StudyRunner:
    """A new process of the study, which knows only the journal."""
    return StudyRunner("s-20231114-abcd", jobs, retries, world, world, Quiet(), world.now_s)


def table(state: StudyState) -> list[tuple[str, str, tuple[str, ...], int]]:
    """The results of a study: for each job the status, disturbances and number of counted runs."""
    rows: list[tuple[str, str, tuple[str, ...], int]] = []
    for one in state.jobs:
        chosen = one.result or (one.counted[-1] if one.counted else None)
        end = chosen.end if chosen else None
        rows.append((one.job.key, end.status if end else "", end.disturbed if end else (), len(one.counted)))
    return rows
