"""What a study does next: a pure function of its jobs and of the facts in its journal.

A job is one run that the study wants. An attempt at it is journalled before its run is made ("started") and after it
is over ("ended"), so that whoever reads any front part of the journal knows which run may exist, and what is left to
do. A run that was interrupted, or lost with the machine, is no attempt that counts; one that the host disturbed is
repeated so often as the study says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from orchestrator.study.verdict import Disturbance

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

    @property
    def names(self) -> tuple[str, str, str]:
        """What `--only` may call it."""
        return self.key, self.experiment, self.label


@dataclass(frozen=True, slots=True)
class Started:
    """The intent of one attempt, before anything of its run exists."""

    at_s: float
    job: str
    attempt: int  # from 1
    run_id: str


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt whose study died before its run had a controller begins only now: its time counts from here."""

    at_s: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over. `disturbed`: why it should be repeated, one sentence each; `disturbances`: their codes."""

    at_s: float
    job: str
    attempt: int
    status: str  # the run's own final status, "failed" where it did not start, or one of the above
    error: str = ""
    disturbed: tuple[str, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Jobs that failed are to be tried again."""

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
        """Whether it ran to an end of its own, good or bad."""
        return self.end is not None and self.end.status not in _VOID

    @property
    def done(self) -> bool:
        """Whether it has its numbers."""
        return self.end is not None and self.end.status == DONE

    @property
    def disturbed(self) -> tuple[str, ...]:
        """Why it should be repeated, one sentence each."""
        return self.end.disturbed if self.end is not None else ()

    @property
    def host_busy(self) -> bool:
        """Whether the host was too busy for its numbers to be judged."""
        return self.end is not None and Disturbance.HOST_BUSY in self.end.disturbances


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
        """The run whose numbers count: the last that nothing disturbed, else whose host was not too busy, else the last
        that was done."""
        done = [a for a in self.attempts if a.done]
        calm = [a for a in done if not a.disturbed]
        usable = [a for a in done if not a.host_busy]
        return (calm or usable or done or [None])[-1]

    def settled(self, retries: int) -> bool:
        """Whether nothing more is to be run; a disturbed run is repeated at most `retries` times."""
        recent = [a for a in self.counted if a.number > self.retried_after]
        if not recent or self.open is not None:
            return False
        last = recent[-1]
        return not (last.done and last.disturbed and len(recent) <= retries)


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
    def repeat_failed(self) -> tuple[JobState, ...]:
        """Jobs that are over and have the numbers of a disturbed run only, since its repeat failed."""
        over = (j for j in self.jobs if j.settled(self.retries) and not j.counted[-1].done)
        return tuple(j for j in over if j.result is not None and j.result.disturbed)

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
    left = left_to_run(state, only)
    for job in left:
        if job.open is not None:
            return Look(job.job, job.open)
    return Start(left[0].job, len(left[0].attempts) + 1) if left else Finish()


def left_to_run(state: StudyState, only: Sequence[str] = ()) -> tuple[JobState, ...]:
    """Jobs that `next_action` still comes to with the same `only`, in the study's order."""
    return tuple(j for j in state.unsettled if j.open is not None or _named(j.job.names, only))


def named_jobs(names: Mapping[str, Sequence[str]], only: Sequence[str]) -> tuple[str, ...]:
    """The keys of `names` (to all that a job is called) that `only` means; all where it is empty.

    Raises ValueError with the patterns that mean no job.
    """
    nobody = [p for p in only if not any(_named(called, [p]) for called in names.values())]
    if nobody:
        said = " ".join(p or "''" for p in nobody)
        raise ValueError(f"--only {said}: no run of that name (there are: {', '.join(names)})")
    return tuple(key for key, called in names.items() if _named(called, only))


def to_retry(state: StudyState, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Keys of the jobs that failed, or whose repeat did, which who goes on with the study wants to have tried again: those it
    names, or, where it names none, all once everything else has run."""
    if not only and state.unsettled:
        return ()
    again = {j.job.key for j in (*state.failed, *state.repeat_failed) if _named(j.job.names, only)}
    return tuple(j.job.key for j in state.jobs if j.job.key in again)


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
        case Begun() | Ended():
            last = state.open
            if last is None or last.number != event.attempt:
                verb = "ends" if isinstance(event, Ended) else "begins now"
                raise ValueError(f"attempt {event.attempt} of '{event.job}' {verb}, and is not going on")
            now = replace(last, end=event) if isinstance(event, Ended) else replace(last, began_s=event.at_s)
            return JobState(state.job, (*state.attempts[:-1], now), state.retried_after)
        case Retry():
            return JobState(state.job, state.attempts, len(state.attempts))


def _named(names: Sequence[str], only: Sequence[str]) -> bool:
    return not only or any(name and fnmatchcase(name, pattern) for name in names for pattern in only)
