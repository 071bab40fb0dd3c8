"""The paper's rules, as its authors computed them, and the rates of a single GPU. Pure.

They read the `steps` table by column (`RunStore.columns("steps")`), so half a million steps take well under a
second. Source: PAPER.md, "What the authors' columns mean". The rules are reproduced including their errors: the phase
timers miss the wait for the GPU, so figures computed from them are not comparable with the swarm's rates.
Ours are in `metrics.epochs.throughput` and `metrics.epochs.granularity`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics.stats import Estimate, mean_interval, ratio_interval

Columns = Mapping[str, Sequence[Any]]
_Floats = NDArray[np.float64]

PHASE_TIMERS = ("load_s", "move_s", "forward_s", "backward_s", "optimizer_local_s", "optimizer_sync_s")
_ROW = ("vm", "step")
_CALCULATION = ("move_s", "forward_s", "backward_s")  # forward_s includes the loss
_OPTIMIZER = ("optimizer_local_s", "optimizer_sync_s")  # together the authors' opt_step
RULE_COLUMNS = (*_ROW, *_CALCULATION, *_OPTIMIZER)  # columns of `steps` that paper_granularity reads
SINGLE_COLUMNS = (*_ROW, "samples", "began_s", "wall_s", *PHASE_TIMERS)  # columns that single_rates reads
_STARTUP = 10  # the first 1/10 of a single GPU's steps is its start-up
_PARTS = 10  # number of equal parts of the remaining steps, for the interval


@dataclass(frozen=True, slots=True)
class PaperGranularity:
    """Granularity of a run by the authors' rule: the mean over the VMs that have one."""

    value: float | None
    by_vm: Mapping[str, float]
    syncs: Mapping[str, int]  # by VM: number of synchronising steps that the rule finds, the first included
    without: Mapping[str, str]  # by VM: why the rule gives no value


@dataclass(frozen=True, slots=True)
class SingleRates:
    """Samples per second of a single GPU, by wall clock and by phase timers.

    `sps_wall`: samples / wall time after the start-up. The interval is over ten equal parts of the steps, so n is 10.
    `sps_phase_timed`: mean over all steps of batch / sum of the step's timers; n is the number of steps.
    """

    sps_wall: Estimate | None
    sps_phase_timed: Estimate | None
    wall_s: float  # seconds over which sps_wall is measured
    timed_s: float  # the part of them that the phase timers cover


def paper_granularity(steps: Columns) -> PaperGranularity:
    """Compute calculation / communication by the authors' rule, by VM, then averaged.

    Optimizer steps of a VM that last at least the median + 2 standard deviations (n - 1 in the divisor) are synchronising
    ones. All steps up to and including the first of these are dropped. The rest, including trailing steps, gives
    (move + forward + loss + backward + other optimizer steps) / (synchronising optimizer steps).
    """
    by_vm: dict[str, float] = {}
    syncs: dict[str, int] = {}
    without: dict[str, str] = {}
    for vm, rows in _rows_by_vm(steps).items():
        optimizer = _sum(steps, _OPTIMIZER, rows)
        spread = float(np.std(optimizer, ddof=1)) if len(rows) > 1 else 0.0
        if spread == 0:
            syncs[vm], without[vm] = 0, "no optimizer step stands out"
            continue
        synchronising = optimizer >= np.median(optimizer) + 2 * spread
        syncs[vm] = int(np.count_nonzero(synchronising))
        if syncs[vm] < 2:
            found = "one optimizer step stands out" if syncs[vm] else "no optimizer step stands out"
            without[vm] = f"{found}, and the first is dropped" if syncs[vm] else found
            continue
        first = int(np.argmax(synchronising)) + 1
        rest = synchronising[first:]
        communication = float(np.sum(optimizer[first:][rest]))
        local = float(np.sum(optimizer[first:][~rest]))
        by_vm[vm] = (float(np.sum(_sum(steps, _CALCULATION, rows)[first:])) + local) / communication
    mean = mean_interval(list(by_vm.values()))
    return PaperGranularity(None if mean is None else mean.value, by_vm, syncs, without)


def single_rates(steps: Columns) -> SingleRates:
    """Return both rates of a run of one VM. Raises ValueError if the steps are of several VMs.

    The start-up is the first tenth of the steps, at least one. The wall time is from the end of its last step to the end
    of the last step of all (`began_s + wall_s`). None if there are too few steps or no time passed.
    """
    groups = _rows_by_vm(steps)
    if len(groups) > 1:
        raise ValueError(f"expected the steps of one VM, found {len(groups)} VMs")
    rows = next(iter(groups.values()), np.zeros(0, dtype=np.intp))
    samples = _column(steps, "samples", rows)
    timed = _sum(steps, PHASE_TIMERS, rows)
    known = timed > 0
    phase_timed = _mean(samples[known] / timed[known])
    start = len(rows) // _STARTUP  # index of the step whose end starts the clock
    if len(rows) < 2:
        return SingleRates(None, phase_timed, 0.0, 0.0)
    ends = _column(steps, "began_s", rows) + _column(steps, "wall_s", rows)
    wall = _wall_rate(ends[start:], np.cumsum(samples)[start:])
    return SingleRates(wall, phase_timed, float(ends[-1] - ends[start]), float(np.sum(timed[start + 1 :])))


def _wall_rate(ends: _Floats, done: _Floats) -> Estimate | None:
    """Return samples / time from the first end to the last. `done`: cumulative samples at each end."""
    if ends[-1] <= ends[0]:
        return None
    parts = min(_PARTS, len(ends) - 1)
    edges = np.linspace(0, len(ends) - 1, parts + 1).astype(np.intp)
    seconds, samples = np.diff(ends[edges]), np.diff(done[edges])
    if bool(np.any(seconds <= 0)):  # too short for the clock's resolution: no interval
        seconds, samples = ends[[-1]] - ends[[0]], done[[-1]] - done[[0]]
    return ratio_interval([float(n) for n in samples], [float(s) for s in seconds])


def _mean(values: _Floats) -> Estimate | None:
    return mean_interval([float(v) for v in values])


def _rows_by_vm(steps: Columns) -> dict[str, NDArray[np.intp]]:
    """Return by VM the indices of its rows, in the order of its steps."""
    rows: dict[str, list[int]] = {}
    for index, vm in enumerate(steps["vm"]):
        rows.setdefault(vm, []).append(index)
    numbers = np.asarray(steps["step"], dtype=np.int64)
    found = {vm: np.asarray(indices, dtype=np.intp) for vm, indices in sorted(rows.items())}
    return {vm: at[np.argsort(numbers[at], kind="stable")] for vm, at in found.items()}


def _column(steps: Columns, name: str, rows: NDArray[np.intp]) -> _Floats:
    return np.asarray(steps[name], dtype=np.float64)[rows]


def _sum(steps: Columns, names: Sequence[str], rows: NDArray[np.intp]) -> _Floats:
    total = np.zeros(len(rows))
    for name in names:
        total += _column(steps, name, rows)
    return total
