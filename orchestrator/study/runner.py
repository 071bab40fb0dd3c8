"""The loop that runs a study: get the next action from the core, journal it, execute it, journal its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from orchestrator.study.core import (
    DONE,
    INTERRUPTED,
    LOST,
    TOO_LONG,
    Attempt,
    Begun,
    Ended,
    Finish,
    Inspect,
    Job,
    Start,
    Started,
    StudyEvent,
    StudyState,
    next_action,
    replay_study,
    run_id_of,
)
from orchestrator.study.verdict import Disturbance

_NOT_BEGUN, _EXISTS = ("absent", "made"), ("made", "running", "lost")


class RunError(Exception):
    """A run could not be started or followed; the study continues without it."""


class LeftRunning(Exception):
    """The user left the run running: its attempt stays open, and the study stops here."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The observed state of a run. "made": it never had a controller. `status` and `error` are set once it has ended."""

    state: Literal["absent", "made", "running", "lost", "ended"]
    status: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """Why following a run stopped. "expired": the wall limit was reached and the run is still running."""

    kind: Literal["ended", "taken_down", "detached", "expired"]


class Launcher(Protocol):
    """Operations on runs. All of them may raise KeyboardInterrupt, and RunError where stated."""

    def inspect(self, run_id: str) -> Inspection:
        """Return the state of the run."""
        ...

    def start(self, job: Job, run_id: str) -> None:
        """Create and start the run. On an interrupt, nothing of it is left running. Raises RunError."""
        ...

    def watch(self, job: Job, run_id: str, until_s: float) -> Watched:
        """Follow the run, replacing a dead controller, until it ends or `until_s` (unix time). Raises RunError."""
        ...

    def take_down(self, run_id: str, why: str) -> None:
        """End the run and verify that nothing is left. Raises TeardownError, which ends the study."""
        ...

    def disturbances(self, run_id: str) -> Mapping[Disturbance, str]:
        """Return the reasons to repeat a finished run, with a sentence each; empty for none. Raises RunError."""
        ...


class Journal(Protocol):
    """Interface of `orchestrator.study.journal.StudyJournal`."""

    @property
    def events(self) -> Sequence[StudyEvent]: ...

    def append(self, event: StudyEvent) -> None: ...


class Listener(Protocol):
    """Receives the progress of the study."""

    def begins(self, state: StudyState, job: Job, attempt: int, run_id: str) -> None: ...

    def ended(self, state: StudyState, job: Job, attempt: Attempt) -> None: ...


class StudyRunner:
    """Runs what is left of a study. Every call of `run` starts from the journal alone."""

    def __init__(
        self,
        study_id: str,
        jobs: Sequence[Job],
        retries: int,
        journal: Journal,
        launcher: Launcher,
        listener: Listener,
        now_s: Callable[[], float],
    ) -> None:
        self._id, self._jobs, self._retries = study_id, jobs, retries
        self._journal, self._launcher, self._listener, self._now_s = journal, launcher, listener, now_s

    @property
    def state(self) -> StudyState:
        """The current state of the study."""
        return replay_study(self._jobs, self._retries, self._journal.events)

    def run(self, only: Sequence[str] = ()) -> StudyState:
        """Run job after job until nothing is left.

        Raises KeyboardInterrupt after an interrupted run was torn down, LeftRunning if the user left it running,
        TeardownError if something of a run may be left, OSError if the journal cannot be written.
        """
        while True:
            match next_action(self.state, only):
                case Finish():
                    return self.state
                case Start(job, attempt):
                    run_id = run_id_of(self._id, job.key, attempt)
                    self._journal.append(Started(self._now_s(), job.key, attempt, run_id))
                    self._listener.begins(self.state, job, attempt, run_id)
                    self._run_attempt(job, Attempt(attempt, run_id, self._now_s()))
                case Inspect(job, attempt):
                    if (
                        self._launcher.inspect(attempt.run_id).state in _NOT_BEGUN
                    ):  # possibly long after it was journalled
                        attempt = replace(attempt, began_s=self._now_s())
                        self._journal.append(Begun(attempt.began_s, job.key, attempt.number))
                    self._listener.begins(self.state, job, attempt.number, attempt.run_id)
                    self._run_attempt(job, attempt)

    def _run_attempt(self, job: Job, attempt: Attempt) -> None:
        """Bring an attempt to its end, from whatever state it is in."""
        try:
            outcome = self._outcome(job, attempt)
        except KeyboardInterrupt:
            seen = self._launcher.inspect(attempt.run_id)
            if seen.state in _EXISTS:
                self._launcher.take_down(attempt.run_id, "interrupted")
            # A run that has ended by itself meanwhile keeps its numbers; a resumed study finds them.
            if seen.state in _EXISTS or seen.status == "stopped":
                self._end(job, attempt, _Outcome(INTERRUPTED))
            raise
        self._end(job, attempt, outcome)

    def _outcome(self, job: Job, attempt: Attempt) -> _Outcome:
        run_id, watched = attempt.run_id, False
        try:
            seen = self._launcher.inspect(run_id)
            if seen.state == "lost":
                self._launcher.take_down(run_id, "lost with the machine it ran on")
                return _Outcome(LOST, "it was lost with the machine it ran on")
            if seen.state == "absent":
                self._launcher.start(job, run_id)
            if seen.state != "ended":
                watched = True
                over = self._launcher.watch(job, run_id, attempt.began_s + job.limit_s)
                if over.kind == "detached":
                    raise LeftRunning
                if over.kind == "taken_down":
                    raise KeyboardInterrupt
                if over.kind == "expired":
                    self._launcher.take_down(run_id, f"took longer than {job.limit_s:.0f} s")
                    return _Outcome(TOO_LONG, f"it took longer than its limit of {job.limit_s:.0f} s")
                seen = self._launcher.inspect(run_id)
            if seen.status == "stopped" and not watched:
                # Stopped by a study that died before journalling it.
                return _Outcome(INTERRUPTED, seen.error)
            found = self._launcher.disturbances(run_id) if seen.status == DONE else {}
            return _Outcome(seen.status, seen.error, tuple(found.values()), tuple(found))
        except RunError as error:
            if self._launcher.inspect(run_id).state in _EXISTS:
                self._launcher.take_down(run_id, "failed")
            return _Outcome("failed", str(error))

    def _end(self, job: Job, attempt: Attempt, outcome: _Outcome) -> None:
        over = Ended(self._now_s(), job.key, attempt.number, *outcome)
        self._journal.append(over)
        self._listener.ended(self.state, job, Attempt(attempt.number, attempt.run_id, attempt.began_s, over))


class _Outcome(NamedTuple):
    status: str
    error: str = ""
    disturbed: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()
