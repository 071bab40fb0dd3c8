"""Detects mixed clocks: rates by phase timers compared with rates by wall clock, in one run and between runs.

Phase timers around asynchronous GPU calls miss the wait for the GPU, so a rate by phase timers is not comparable
with a rate by wall clock, and a speed-up computed from one of each is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.audit.evidence import Evidence, percent, rounded
from analysis.audit.findings import Finding
from analysis.replay import RunRow, with_speedups
from metrics.epochs.throughput import SwarmEpoch, local_throughput, measured, throughput_phase_timed
from metrics.stats import Estimate

# Our own peers leave 0.2 % of a step untimed (local-2; Python between two timers). A rate by timers ignores
# whatever exceeds that.
UNTIMED_DOUBT = 0.02
# Rates of one run's epochs differ by at most 4 % in the paper: a larger difference comes from the clocks.
SPEEDUP_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Untimed:
    """Wall time of a run's measured part and the part of it that phase timers cover, in seconds summed over VMs."""

    wall_s: float
    timed_s: float
    n: int  # measured epochs; 1 for a single-VM baseline (its log)
    part: str = ""  # the part used instead if no epoch was measured

    @property
    def share(self) -> float:
        """Share of the wall time that no timer covers, 0 to 1; negative if the timers exceed the wall time."""
        return 1 - self.timed_s / self.wall_s


def untimed(e: Evidence) -> Untimed | None:
    """Compute the untimed share over the measured epochs; None without timers.

    Without measured epochs all epochs are used, otherwise all steps. A single-VM baseline uses its steps after
    start-up.
    """
    chosen = measured(e.run.raw)
    if e.single is not None:
        found = Untimed(e.single.wall_s, e.single.timed_s, 1)
    elif any(epoch.peers for epoch in chosen):
        found = _of_epochs(chosen, len(chosen), "")
    elif any(epoch.peers for epoch in e.run.raw):
        found = _of_epochs(e.run.raw, 0, " of all epochs")
    else:
        found = Untimed(e.steps_wall_s, e.steps_timed_s, 0, " of all steps")
    return found if found.wall_s > 0 and found.timed_s > 0 else None


def _of_epochs(epochs: Sequence[SwarmEpoch], n: int, part: str) -> Untimed:
    peers = [p for epoch in epochs for p in epoch.peers]
    wall_s = math.fsum(p.wall_s for p in peers)
    timed_s = math.fsum(p.load_s + p.timed_s + p.comm_s - p.overlapped_s for p in peers)
    return Untimed(wall_s, timed_s, n, part)


def mixed_clock(e: Evidence) -> list[Finding]:
    """Report the share of the wall time that no phase timer covers, and the figures on both clocks."""
    found = untimed(e)
    if found is None:
        return []
    share = found.share
    if share < -UNTIMED_DOUBT:
        sentence = (
            f"The phase timers add up to {percent(-share)} more than the wall time: they overlap, or rows are "
            "duplicated."
        )
        return [e.finding("mixed-clock", "error", sentence, "untimed_share", share, 0.0, found.n)]
    if share <= UNTIMED_DOUBT:
        return []
    file = e.file(e.run.vms[0].vm) if e.baseline and e.run.vms else None
    figures = _both_clocks(e) if found.n else "no epoch was measured, so no figures can be compared"
    sentence = f"No phase timer covers {percent(share)} of the wall time{found.part}: {figures}."
    return [e.finding("mixed-clock", "doubt", sentence, "untimed_share", share, 0.0, found.n, file)]


def _both_clocks(e: Evidence) -> str:
    row = e.row
    if row.baseline:
        timed, wall = row.figures.get("sps_phase_timed"), row.figures.get("sps_wall")
        return f"{_value(timed)} sps by phase timers, {_value(wall)} sps by wall clock"
    timed, wall = throughput_phase_timed(e.run.study), local_throughput(e.run.study)
    parts = [
        f"without communication the VMs reach {_value(timed)} sps by phase timers and {_value(wall)} by wall clock"
    ]
    ratio, timed_ratio, sps = (row.value(key) for key in ("granularity", "granularity_phase_timed", "sps"))
    if ratio is not None and timed_ratio is not None:
        parts.append(
            f"granularity is {rounded(timed_ratio)} by phase timers and {rounded(ratio)} by wall clock"
        )
    if sps is not None:
        parts.append(f"the swarm's {rounded(sps)} sps are by wall clock")
    return "; ".join(parts)


def speedups(runs: Sequence[Evidence]) -> list[Finding]:
    """Compare speed-ups over one VM of the same model and GPU on one clock with those on mixed clocks.

    Returns one finding per GPU for the fastest run of each model at the largest number of GPUs, followed by one
    finding per run that has a baseline among `runs`.
    """
    rows = with_speedups([e.row for e in runs])
    wrong = [
        (e, row)
        for e, row in zip(runs, rows, strict=True)
        if (wall := row.value("speedup"))
        and (mixed := row.value("speedup_phase_timed"))
        and _differ(wall, mixed)
    ]
    return [*_largest([row for _, row in wrong]), *(_one(e, row, rows) for e, row in wrong)]


def _differ(wall: float, mixed: float) -> bool:
    return abs(wall / mixed - 1) > SPEEDUP_ERROR


def _one(e: Evidence, row: RunRow, rows: Sequence[RunRow]) -> Finding:
    bases = [b for b in rows if b.baseline and (b.gpu, b.model) == (row.gpu, row.model)]
    names = ", ".join(b.label or b.run_id for b in bases)
    wall, mixed, sps = (row.figures[key].value for key in ("speedup", "speedup_phase_timed", "sps"))
    sentence = (
        f"On one clock {row.peers} {_gpu(row)}s are {wall:.2f} times as fast as one ({rounded(sps)} sps / "
        f"{rounded(sps / wall)} sps), not {mixed:.2f} times as computed from the phase-timed rate of {names}."
    )
    return e.finding("speed-up", "error", sentence, "speedup", mixed, wall, row.n_epochs)


def _largest(wrong: Sequence[RunRow]) -> list[Finding]:
    found: list[Finding] = []
    for gpu in sorted({row.gpu or "" for row in wrong}):
        group = [row for row in wrong if row.gpu == gpu]
        peers = max(row.peers for row in group)
        best: dict[str, RunRow] = {}
        for row in sorted((r for r in group if r.peers == peers), key=lambda r: -(r.value("speedup") or 0.0)):
            best.setdefault(row.model or "", row)
        chosen = [row for _, row in sorted(best.items())]
        walls = " and ".join(
            f"{r.value('speedup'):.1f} times ({r.model}, {r.label or r.run_id})" for r in chosen
        )
        mixed = " and ".join(f"{r.value('speedup_phase_timed'):.2f}" for r in chosen)
        sentence = (
            f"On one clock {peers} {_gpu(chosen[0])}s are {walls} as fast as one, not {mixed}: speed-ups over a "
            "phase-timed baseline are wrong."
        )
        first = chosen[0]
        found.append(
            Finding(
                None,
                None,
                "speed-up",
                "error",
                sentence,
                "speedup",
                first.value("speedup_phase_timed"),
                first.value("speedup"),
                peers,
            )
        )
    return found


def _gpu(row: RunRow) -> str:
    return (row.gpu or "GPU").removesuffix(":1")


def _value(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else rounded(estimate.value)
