"""Decide what a study does next, as a pure function of its jobs and its journal.

A job is one run of the study. Each attempt at a job is journalled before its run is created ("started") and after it
has ended ("ended"), so that any prefix of the journal shows which run may exist and what is left to do. Runs that
were interrupted or lost with the machine do not count as attempts. Runs disturbed by the host are repeated as often
as the study allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from orchestrator.study.verdict import Disturbance

DONE = "done"
INTERRUPTED = "interrupted"  # torn down because the study was interrupted; says nothing about the experiment
LOST = "lost"  # the machine, or all processes on it, died
TOO_LONG = "too_long"  # torn down at the wall limit
_VOID = frozenset({INTERRUPTED, LOST})


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the study."""

    key: str
    experiment: str  # the experiment's name
    label: str
    planned_s: float | None  # on this machine's clock, without startup and teardown; None: unknown
    limit_s: float  # the wall limit of one attempt
    judged: bool | None = None  # compared with the paper; None: depends on its label and options
    against: str = ""  # label of the job it is compared with; "": the study's baseline

    @property
    def names(self) -> tuple[str, str, str]:
        """The names by which `--only` selects the job."""
        return self.key, self.experiment, self.label


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt is about to start; nothing of its run exists yet."""

    at_s: float
    job: str
    attempt: int  # from 1
    run_id: str


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt resumed before its run had a controller; its time counts from here."""

    at_s: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt has ended. `disturbed`: reasons to repeat it, as sentences; `disturbances`: their codes."""

    at_s: float
    job: str
    attempt: int
    status: str  # the run's final status, "failed" if it did not start, or one of the constants above
    error: str = ""
    disturbed: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed jobs are to be retried."""

    at_s: float
    jobs: tuple[str, ...]


StudyEvent = Started | Begun | Ended | Retry


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job."""

    number: int
    run_id: str
    began_s: float
    end: Ended | None = None

    @property
    def counts(self) -> bool:
        """Whether it ended by itself, successfully or not."""
        return self.end is not None and self.end.status not in _VOID

    @property
    def done(self) -> bool:
        """Whether it finished and has numbers."""
        return self.end is not None and self.end.status == DONE

    @property
    def disturbed(self) -> tuple[str, ...]:
        """Reasons to repeat it, as sentences."""
        return self.end.disturbed if self.end is not None else ()

    @property
    def host_busy(self) -> bool:
        """Whether the host was too busy for its numbers to be judged."""
        return self.end is not None and Disturbance.HOST_BUSY in self.end.disturbances


@dataclass(frozen=True, slots=True)
class JobState:
    """A job and its attempts so far; `retried_after`: number of attempts before the last retry request."""

    job: Job
    attempts: tuple[Attempt, ...] = ()
    retried_after: int = 0

    @property
    def counted(self) -> tuple[Attempt, ...]:
        """Attempts that ended by themselves."""
        return tuple(a for a in self.attempts if a.counts)

    @property
    def open(self) -> Attempt | None:
        """The attempt without an end, whose run may be in progress."""
        return next((a for a in self.attempts if a.end is None), None)

    @property
    def result(self) -> Attempt | None:
        """The attempt whose numbers count.

        The last undisturbed one, else the last one whose host was not too busy, else the last finished one.
        """
        done = [a for a in self.attempts if a.done]
        undisturbed = [a for a in done if not a.disturbed]
        usable = [a for a in done if not a.host_busy]
        return (undisturbed or usable or done or [None])[-1]

    def settled(self, retries: int) -> bool:
        """Whether the job needs no further run; a disturbed run is repeated at most `retries` times."""
        recent = [a for a in self.counted if a.number > self.retried_after]
        if not recent or self.open is not None:
            return False
        last = recent[-1]
        return not (last.done and last.disturbed and len(recent) <= retries)


@dataclass(frozen=True, slots=True)
class StudyState:
    """All jobs, in the order in which they run."""

    jobs: tuple[JobState, ...]
    retries: int

    @property
    def failed(self) -> tuple[JobState, ...]:
        """Finished jobs without numbers."""
        return tuple(j for j in self.jobs if j.settled(self.retries) and j.result is None)

    @property
    def repeat_failed(self) -> tuple[JobState, ...]:
        """Finished jobs that only have the numbers of a disturbed run because its repeat failed."""
        settled = (j for j in self.jobs if j.settled(self.retries) and not j.counted[-1].done)
        return tuple(j for j in settled if j.result is not None and j.result.disturbed)

    @property
    def unsettled(self) -> tuple[JobState, ...]:
        """Jobs that are not finished."""
        return tuple(j for j in self.jobs if not j.settled(self.retries))


@dataclass(frozen=True, slots=True)
class Start:
    """Journal this attempt, then create its run."""

    job: Job
    attempt: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """An attempt has no end in the journal: inspect its run and resume from there."""

    job: Job
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing left to run."""


Action = Start | Inspect | Finish


def replay_study(jobs: Sequence[Job], retries: int, events: Iterable[StudyEvent]) -> StudyState:
    """Compute the state after these events. Raises ValueError for an event that contradicts earlier ones."""
    states = {job.key: JobState(job) for job in jobs}
    for event in events:
        for key in event.jobs if isinstance(event, Retry) else (event.job,):
            if key not in states:
                raise ValueError(f"the study has no run '{key}'")
            states[key] = _after(states[key], event)
    return StudyState(tuple(states.values()), retries)


def next_action(state: StudyState, only: Sequence[str] = ()) -> Action:
    """Return the next action. `only`: names or patterns of jobs; of others, only runs that may be in progress matter."""
    left = left_to_run(state, only)
    for job in left:
        if job.open is not None:
            return Inspect(job.job, job.open)
    return Start(left[0].job, len(left[0].attempts) + 1) if left else Finish()


def left_to_run(state: StudyState, only: Sequence[str] = ()) -> tuple[JobState, ...]:
    """Jobs that `next_action` would still return with the same `only`, in the study's order."""
    return tuple(j for j in state.unsettled if j.open is not None or _matches(j.job.names, only))


def named_jobs(names: Mapping[str, Sequence[str]], only: Sequence[str]) -> tuple[str, ...]:
    """Return the jobs selected by `only`, all if it is empty. `names`: the names of each job, by key.

    Raises ValueError with the patterns that match no job.
    """
    unmatched = [p for p in only if not any(_matches(called, [p]) for called in names.values())]
    if unmatched:
        patterns = " ".join(p or "''" for p in unmatched)
        raise ValueError(f"--only {patterns}: matches no run of the study (runs: {', '.join(names)})")
    return tuple(key for key, called in names.items() if _matches(called, only))


def to_retry(state: StudyState, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the keys of the failed jobs, or failed repeats, to retry when the study is resumed.

    These are the ones selected by `only`; without `only`, all of them, once everything else has run.
    """
    if not only and state.unsettled:
        return ()
    again = {j.job.key for j in (*state.failed, *state.repeat_failed) if _matches(j.job.names, only)}
    return tuple(j.job.key for j in state.jobs if j.job.key in again)


def run_id_of(study_id: str, job: str, attempt: int) -> str:
    """Return the deterministic run id of an attempt: `<job>-<day>-<4 hex digits of the study>-<attempt>`."""
    return f"{job}-{'-'.join(study_id.rsplit('-', 2)[-2:])}-{attempt}"


def _after(state: JobState, event: StudyEvent) -> JobState:
    match event:
        case Started():
            if state.open is not None or event.attempt != len(state.attempts) + 1:
                raise ValueError(f"attempt {event.attempt} of '{event.job}' begins out of order")
            begun = Attempt(event.attempt, event.run_id, event.at_s)
            return JobState(state.job, (*state.attempts, begun), state.retried_after)
        case Begun() | Ended():
            last = state.open
            if last is None or last.number != event.attempt:
                verb = "ends" if isinstance(event, Ended) else "begins now"
                raise ValueError(f"attempt {event.attempt} of '{event.job}' {verb}, but is not in progress")
            now = replace(last, end=event) if isinstance(event, Ended) else replace(last, began_s=event.at_s)
            return JobState(state.job, (*state.attempts[:-1], now), state.retried_after)
        case Retry():
            return JobState(state.job, state.attempts, len(state.attempts))


def _matches(names: Sequence[str], only: Sequence[str]) -> bool:
    return not only or any(name and fnmatchcase(name, pattern) for name in names for pattern in only)
