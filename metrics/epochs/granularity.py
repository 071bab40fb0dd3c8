"""Calculation against communication: per epoch and peer, averaged over peers, then over epochs.

Granularity is calculation time / communication time (Erben et al. 2023, eq. 1), both by wall clock; also where one goes on
behind the other (`swarm.overlap`), so that their sum is more than the epoch. There are two means of it: of the epochs'
ratios (`granularity`), which one epoch with hardly any communication can double, and the ratio of the mean seconds
(`granularity_of_means`), which belongs beside those seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.stats import Estimate, Spread, mean_interval, ratio_interval, spread


def epoch_granularity(epoch: SwarmEpoch) -> float | None:
    """Mean over the peers of calc / comm; None when none of them communicated."""
    values = [g for p in epoch.peers if (g := p.granularity) is not None]
    return math.fsum(values) / len(values) if values else None


def granularity(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Mean over the measured epochs; None when there is none."""
    return mean_interval([g for e in measured(epochs) if (g := epoch_granularity(e)) is not None])


def granularity_of_means(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Mean calculation / mean communication of the measured epochs: `calculation` / `communication`.

    None without a measured epoch, and if no peer ever communicated.
    """
    chosen = [e for e in measured(epochs) if e.peers]
    calc_s = [_mean_calc_s(e) for e in chosen]
    comm_s = [_mean_comm_s(e) for e in chosen]
    return ratio_interval(calc_s, comm_s) if any(comm_s) else None


def granularity_spread(epochs: Iterable[SwarmEpoch]) -> Spread | None:
    """How the measured epochs' granularities are spread: least, median, most; None without one."""
    return spread([g for e in measured(epochs) if (g := epoch_granularity(e)) is not None])


def granularity_phase_timed(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """The same with the study's numerator: its phase timers (move, forward, backward, local optimizer)
    instead of the wall time, per peer, then averaged like `granularity`."""
    values = [
        math.fsum(ratios) / len(ratios)
        for e in measured(epochs)
        if (ratios := [p.timed_s / p.comm_s for p in e.peers if p.comm_s > 0])
    ]
    return mean_interval(values)


def calculation(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Calculation seconds of a peer in an epoch: mean over peers, then over the measured epochs."""
    return mean_interval([_mean_calc_s(e) for e in measured(epochs) if e.peers])


def communication(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Communication seconds of a peer in an epoch: mean over peers, then over the measured epochs.

    None where no peer ever synchronised (a plain loop): there was nothing to measure.
    """
    means = [_mean_comm_s(e) for e in measured(epochs) if e.peers]
    return mean_interval(means) if any(means) else None


def overlapped(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Of the communication, the seconds in which a peer calculated; None where no round went on behind calculation."""
    means = [math.fsum(p.overlapped_s for p in e.peers) / len(e.peers) for e in measured(epochs) if e.peers]
    return mean_interval(means) if any(means) else None


def _mean_calc_s(epoch: SwarmEpoch) -> float:
    return math.fsum(p.calc_s for p in epoch.peers) / len(epoch.peers)


def _mean_comm_s(epoch: SwarmEpoch) -> float:
    return math.fsum(p.comm_s for p in epoch.peers) / len(epoch.peers)
