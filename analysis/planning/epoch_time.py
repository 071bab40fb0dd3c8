"""Seconds of a predicted epoch, from those of its calculation and of its round, by the schedule of `swarm.overlap`. Pure."""

from __future__ import annotations

import numpy as np

from experiments.averaging.records import Schedule


def epoch_s(schedule: Schedule, calc_s: float, comm_s: float, work_s: float, step_s: float) -> float:
    """Return the seconds of an epoch.

    `comm_s`: of the round, the VM's own work `work_s` included, which takes place in the training thread and so is never
    overlapped. `step_s`: of the slowest peer's step; the last one of an epoch is not overlapped either.
    """
    if not schedule.overlaps_rounds:
        return schedule.epoch_s(calc_s, comm_s, step_s)
    return schedule.epoch_s(calc_s, comm_s - work_s, step_s) + work_s


def epochs_s(
    schedule: Schedule, calc_s: np.ndarray, comm_s: np.ndarray, work_s: float, step_s: float
) -> np.ndarray:
    """Return `epoch_s` of each simulated run."""
    if not schedule.overlaps_rounds:
        return calc_s + comm_s
    pairs = zip(calc_s.tolist(), comm_s.tolist(), strict=True)
    return np.array([epoch_s(schedule, calc, comm, work_s, step_s) for calc, comm in pairs])
