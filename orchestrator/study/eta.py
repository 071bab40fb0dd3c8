"""Estimate the remaining time of a study. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orchestrator.study.core import JobState, StudyState, left_to_run

OVERHEAD_S = 45.0  # per run, until one has been observed: startup, final reports, teardown


def remaining_s(state: StudyState, now_s: float, only: Sequence[str] = ()) -> float | None:
    """Estimate the seconds until the jobs selected by `only` (all if empty) have ended.

    The sum of their planned times plus the median overhead of the runs so far. None if a planned time is unknown.
    Repeats of disturbed runs are not included.
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
    overheads = [seconds for job in state.jobs for seconds in _overheads(job)]
    return max(0.0, median(overheads)) if overheads else OVERHEAD_S


def _overheads(job: JobState) -> list[float]:
    """Seconds by which each finished run of a job exceeded its plan."""
    planned_s = job.job.planned_s
    if planned_s is None:
        return []
    return [a.end.at_s - a.began_s - planned_s for a in job.attempts if a.done and a.end is not None]
