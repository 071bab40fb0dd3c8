"""What a study does next: a pure function of its jobs and of the facts in its journal.

A job is one run that the study wants. An attempt at it is journalled before its run is made ("started") and after it
is over ("ended"), so that whoever reads any front part of the journal knows which run may exist, and what is left to
do. A run that was interrupted, or lost with the machine, is no attempt that counts; one that the host disturbed is
repeated so often as the study says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = [
    "DONE",
    "INTERRUPTED",
    "LOST",
    "TOO_LONG",
    "Action",
    "Attempt",
    "Ended",
    "Finish",
    "Job",
    "JobState",
    "Look",
    "Retry",
    "Start",
    "Started",
    "StudyEvent",
    "StudyState",
    "next_action",
    "replay_study",
    "run_id_of",
    "to_retry",
]

DONE = "done"
INTERRUPTED = "interrupted"  # taken down by whoever ran the study: nothing is known of the experiment
LOST = "lost"  # gone with the machine, or with all that ran on it
TOO_LONG = "too_long"  # taken down at the wall limit
_VOID = frozenset({INTERRUPTED, LOST})


@dataclass(frozen=True, slots=True)
class Job:
    """One run that the study wants."""

    key: str
    experiment: str  # the experiment's name
    label: str
    planned_s: float | None  # of this machine's clock, start and end left out; None: unknown
    limit_s: float  # the wall limit of one attempt
    judged: bool | None = None  # held against the study; None: by its label and its options
    against: str = ""  # the label of the job that it is held against; "": the study's baseline


@dataclass(frozen=True, slots=True)
class Started:
    """The intent of one attempt, before anything of its run exists."""

    at_s: float
    job: str
    attempt: int  # from 1
    run_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over. `disturbed`: why it should be repeated, one sentence each."""

    at_s: float
    job: str
    attempt: int
    status: str  # the run's own final status, "failed" where it did not start, or one of the above
    error: str = ""
    disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Jobs that failed are to be tried again."""

    at_s: float
    jobs: tuple[str, ...]


StudyEvent = Started | Ended | Retry


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job."""

    number: int
    run_id: str
    began_s: float
    end: Ended | None = None

    @property
    def counts(self) -> bool:
        """Whether it ran to an end of its own, good or bad."""
        return self.end is not None and self.end.status not in _VOID

    @property
    def done(self) -> bool:
        """Whether it has its numbers."""
        return self.end is not None and self.end.status == DONE


@dataclass(frozen=True, slots=True)
class JobState:
    """A job and its attempts so far; `retried_after`: the attempts that a wish to try again left behind."""

    job: Job
    attempts: tuple[Attempt, ...] = ()
    retried_after: int = 0

    @property
    def counted(self) -> tuple[Attempt, ...]:
        """Attempts that count."""
        return tuple(a for a in self.attempts if a.counts)

    @property
    def open(self) -> Attempt | None:
        """The attempt whose run may be going on."""
        return next((a for a in self.attempts if a.end is None), None)

    @property
    def result(self) -> Attempt | None:
        """The run whose numbers count: the last that nothing disturbed, else the last that was done."""
        done = [a for a in self.attempts if a.done]
        calm = [a for a in done if a.end is not None and not a.end.disturbed]
        return (calm or done or [None])[-1]

    def settled(self, retries: int) -> bool:
        """Whether nothing more is to be run; a disturbed run is repeated at most `retries` times."""
        recent = [a for a in self.counted if a.number > self.retried_after]
        if not recent or self.open is not None:
            return False
        last = recent[-1]
        return not (last.done and last.end is not None and last.end.disturbed and len(recent) <= retries)


@dataclass(frozen=True, slots=True)
class StudyState:
    """All jobs in the order in which they run."""

    jobs: tuple[JobState, ...]
    retries: int

    @property
    def failed(self) -> tuple[JobState, ...]:
        """Jobs that are over and have no numbers."""
        return tuple(j for j in self.jobs if j.settled(self.retries) and j.result is None)

    @property
    def unsettled(self) -> tuple[JobState, ...]:
        """Jobs that are not over."""
        return tuple(j for j in self.jobs if not j.settled(self.retries))


@dataclass(frozen=True, slots=True)
class Start:
    """Journal this attempt, then make its run."""

    job: Job
    attempt: int


@dataclass(frozen=True, slots=True)
class Look:
    """An attempt has no end in the journal: look at its run and go on from what is there."""

    job: Job
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to run."""


Action = Start | Look | Finish


def replay_study(jobs: Sequence[Job], retries: int, events: Iterable[StudyEvent]) -> StudyState:
    """The state after these events. Raises ValueError for an event that fits nothing before it."""
    states = {job.key: JobState(job) for job in jobs}
    for event in events:
        for key in event.jobs if isinstance(event, Retry) else (event.job,):
            if key not in states:
                raise ValueError(f"the study has no run '{key}'")
            states[key] = _after(states[key], event)
    return StudyState(tuple(states.values()), retries)


def next_action(state: StudyState, only: Sequence[str] = ()) -> Action:
    """What comes next. `only`: names or patterns; other jobs are left as they are, but for a run that may go on."""
    for job in state.jobs:
        if job.open is not None:
            return Look(job.job, job.open)
    for job in state.unsettled:
        if not only or any(_named(job.job, pattern) for pattern in only):
            return Start(job.job, len(job.attempts) + 1)
    return Finish()


def to_retry(state: StudyState, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Keys of the failed jobs that who goes on with the study wants to have tried again: those it names, or, where it names
    none, all once everything else has run."""
    if not only and state.unsettled:
        return ()
    named = (j.job for j in state.failed if not only or any(_named(j.job, pattern) for pattern in only))
    return tuple(job.key for job in named)


def run_id_of(study_id: str, job: str, attempt: int) -> str:
    """The id of an attempt's run: `<job>-<day>-<4 hex digits of the study>-<attempt>`, always the same."""
    return f"{job}-{'-'.join(study_id.rsplit('-', 2)[-2:])}-{attempt}"


def _after(state: JobState, event: StudyEvent) -> JobState:
    match event:
        case Started():
            if state.open is not None or event.attempt != len(state.attempts) + 1:
                raise ValueError(f"attempt {event.attempt} of '{event.job}' begins out of turn")
            begun = Attempt(event.attempt, event.run_id, event.at_s)
            return JobState(state.job, (*state.attempts, begun), state.retried_after)
        case Ended():
            last = state.open
            if last is None or last.number != event.attempt:
                raise ValueError(f"attempt {event.attempt} of '{event.job}' ends, and is not going on")
            over = Attempt(last.number, last.run_id, last.began_s, event)
            return JobState(state.job, (*state.attempts[:-1], over), state.retried_after)
        case Retry():
            return JobState(state.job, state.attempts, len(state.attempts))


def _named(job: Job, pattern: str) -> bool:
    names: tuple[str, ...] = (job.key, job.experiment, job.label)
    return any(name and fnmatchcase(name, pattern) for name in names)
