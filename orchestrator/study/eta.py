"""How long a study still takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orchestrator.study.core import JobState, StudyState, left_to_run

OVERHEAD_S = 45.0  # of one run before the first one was seen: start-up, the last words, taking down


def remaining_s(state: StudyState, now_s: float, only: Sequence[str] = ()) -> float | None:
    """Seconds until the jobs that `only` names (none: all) are over, by their plans and by what runs took beyond theirs so
    far (the median).

    None where a plan says nothing. Repeats of disturbed runs are not foreseen.
    """
    overhead_s = _overhead_s(state)
    total_s = 0.0
    for job in left_to_run(state, only):
        if job.job.planned_s is None:
            return None
        expected_s = job.job.planned_s + overhead_s
        running = job.open
        total_s += expected_s if running is None else max(0.0, expected_s - (now_s - running.began_s))
    return total_s


def _overhead_s(state: StudyState) -> float:
    beyond = [seconds for job in state.jobs for seconds in _beyond(job)]
    return max(0.0, median(beyond)) if beyond else OVERHEAD_S


def _beyond(job: JobState) -> list[float]:
    """What each run of a job that was done took beyond its plan."""
    planned_s = job.job.planned_s
    if planned_s is None:
        return []
    return [a.end.at_s - a.began_s - planned_s for a in job.attempts if a.done and a.end is not None]
