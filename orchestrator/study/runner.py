"""The loop that runs a study: ask the core what is next, journal it, do it, journal how it ended."""

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
    Job,
    Look,
    Start,
    Started,
    StudyEvent,
    StudyState,
    next_action,
    replay_study,
    run_id_of,
)
from orchestrator.study.verdict import Disturbance

_NOT_BEGUN, _THERE = ("absent", "made"), ("made", "running", "lost")


class RunError(Exception):
    """A run could not be started or watched; the study goes on without it."""


class LeftRunning(Exception):
    """The person left the run running: its attempt stays open, and the study ends here."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is of a run. `status`, `error`: of one that has ended. "made": it never had a controller."""

    state: Literal["absent", "made", "running", "lost", "ended"]
    status: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """How watching a run came to an end; `expired`: its wall limit was reached, and it still runs."""

    kind: Literal["ended", "taken_down", "detached", "expired"]


class Launcher(Protocol):
    """What the study does with runs. Everything may raise KeyboardInterrupt; RunError where it says so."""

    def look(self, run_id: str) -> Seen:
        """What there is of the run."""
        ...

    def start(self, job: Job, run_id: str) -> None:
        """Make the run and bring it up; interrupted, nothing of it is left running. Raises RunError."""
        ...

    def watch(self, job: Job, run_id: str, until_s: float) -> Watched:
        """Follow it, taking over from a controller that died, until it ends or `until_s` (unix). Raises RunError."""
        ...

    def take_down(self, run_id: str, why: str) -> None:
        """End it and prove that nothing is left. Raises TeardownError: then the study cannot go on."""
        ...

    def disturbances(self, run_id: str) -> Mapping[Disturbance, str]:
        """Why a run that is done should be repeated, with a sentence each; empty: it need not. Raises RunError."""
        ...


class Journal(Protocol):
    """See `orchestrator.study.journal.StudyJournal`."""

    @property
    def events(self) -> Sequence[StudyEvent]: ...

    def append(self, event: StudyEvent) -> None: ...


class Teller(Protocol):
    """Whom the study tells how it goes."""

    def begins(self, state: StudyState, job: Job, attempt: int, run_id: str) -> None: ...

    def ended(self, state: StudyState, job: Job, attempt: Attempt) -> None: ...


class StudyRunner:
    """Runs what is left of a study. Every call of `run` begins from the journal alone."""

    def __init__(
        self,
        study_id: str,
        jobs: Sequence[Job],
        retries: int,
        journal: Journal,
        launcher: Launcher,
        teller: Teller,
        now_s: Callable[[], float],
    ) -> None:
        self._id, self._jobs, self._retries = study_id, jobs, retries
        self._journal, self._launcher, self._teller, self._now_s = journal, launcher, teller, now_s

    @property
    def state(self) -> StudyState:
        """Where the study is."""
        return replay_study(self._jobs, self._retries, self._journal.events)

    def run(self, only: Sequence[str] = ()) -> StudyState:
        """Run job after job until nothing is left.

        Raises KeyboardInterrupt once an interrupted run is taken down (or was left running on purpose),
        TeardownError when something of a run may be left, OSError when the journal cannot be written.
        """
        while True:
            match next_action(self.state, only):
                case Finish():
                    return self.state
                case Start(job, attempt):
                    run_id = run_id_of(self._id, job.key, attempt)
                    self._journal.append(Started(self._now_s(), job.key, attempt, run_id))
                    self._teller.begins(self.state, job, attempt, run_id)
                    self._pursue(job, Attempt(attempt, run_id, self._now_s()))
                case Look(job, attempt):
                    if self._launcher.look(attempt.run_id).state in _NOT_BEGUN:  # maybe long after its intent
                        attempt = replace(attempt, began_s=self._now_s())
                        self._journal.append(Begun(attempt.began_s, job.key, attempt.number))
                    self._teller.begins(self.state, job, attempt.number, attempt.run_id)
                    self._pursue(job, attempt)

    def _pursue(self, job: Job, attempt: Attempt) -> None:
        """Bring one attempt to its end, wherever it stands."""
        try:
            outcome = self._outcome(job, attempt)
        except KeyboardInterrupt:
            seen = self._launcher.look(attempt.run_id)
            if seen.state in _THERE:
                self._launcher.take_down(attempt.run_id, "interrupted")
            # One that ended by itself meanwhile keeps its numbers: whoever goes on finds them.
            if seen.state in _THERE or seen.status == "stopped":
                self._end(job, attempt, _Outcome(INTERRUPTED))
            raise
        self._end(job, attempt, outcome)

    def _outcome(self, job: Job, attempt: Attempt) -> _Outcome:
        run_id, watched = attempt.run_id, False
        try:
            seen = self._launcher.look(run_id)
            if seen.state == "lost":
                self._launcher.take_down(run_id, "lost with what it ran on")
                return _Outcome(LOST, "it was gone, with all that it ran on")
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
                seen = self._launcher.look(run_id)
            if seen.status == "stopped" and not watched:
                return _Outcome(
                    INTERRUPTED, seen.error
                )  # by whoever ran the study, who died before saying so
            found = self._launcher.disturbances(run_id) if seen.status == DONE else {}
            return _Outcome(seen.status, seen.error, tuple(found.values()), tuple(found))
        except RunError as error:
            if self._launcher.look(run_id).state in _THERE:
                self._launcher.take_down(run_id, "failed")
            return _Outcome("failed", str(error))

    def _end(self, job: Job, attempt: Attempt, outcome: _Outcome) -> None:
        over = Ended(self._now_s(), job.key, attempt.number, *outcome)
        self._journal.append(over)
        self._teller.ended(self.state, job, Attempt(attempt.number, attempt.run_id, attempt.began_s, over))


class _Outcome(NamedTuple):
    status: str
    error: str = ""
    disturbed: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()
