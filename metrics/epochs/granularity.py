"""Granularity, calculation and communication: by epoch and peer, averaged over peers, then over epochs.

Granularity is calculation time / communication time (Erben et al. 2023, eq. 1), both by wall clock. This also holds if
they overlap (`swarm.overlap`); their sum is then longer than the epoch. There are two means: of the epochs' ratios
(`granularity`), which one epoch with hardly any communication can double, and the ratio of the mean seconds
(`granularity_of_means`), which is shown beside those seconds. Both include the stall, the `load` seconds in which a step
waited for data; `granularity_stall_free` is (calc_s - load_s) / comm_s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.stats import Estimate, Spread, mean_interval, ratio_interval, ratio_values, spread


def epoch_granularity(epoch: SwarmEpoch) -> float | None:
    """Return the mean over the peers of calc / comm. None if no peer communicated."""
    values = [g for p in epoch.peers if (g := p.granularity) is not None]
    return math.fsum(values) / len(values) if values else None


def granularity(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the mean granularity of the measured epochs. None if there is none."""
    return mean_interval([g for e in measured(epochs) if (g := epoch_granularity(e)) is not None])


def granularity_of_means(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return mean calculation / mean communication of the measured epochs: `calculation` / `communication`.

    None without a measured epoch, and if no peer ever communicated.
    """
    calc_s, comm_s = _mean_seconds(epochs)
    return ratio_interval(calc_s, comm_s) if any(comm_s) else None


def epoch_granularity_stall_free(epoch: SwarmEpoch) -> float | None:
    """Return the mean over the peers of (calc - load) / comm. None if unknown, or if no peer communicated."""
    peers = [(calc_s, p.comm_s) for p in epoch.peers if p.comm_s > 0 for calc_s in (p.stall_free_calc_s,)]
    values = [calc_s / comm_s for calc_s, comm_s in peers if calc_s is not None]
    return math.fsum(values) / len(values) if values and len(values) == len(peers) else None


def granularity_stall_free(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return mean (calculation - load) / mean communication of the measured epochs: `granularity_of_means` without stalls.

    None if that is, and if the load seconds of a peer are unknown.
    """
    chosen = [e for e in measured(epochs) if e.peers]
    peers = [[(p.stall_free_calc_s, p.comm_s) for p in e.peers] for e in chosen]
    if not any(comm_s for e in peers for _, comm_s in e) or any(
        calc_s is None for e in peers for calc_s, _ in e
    ):
        return None
    calc = [math.fsum(calc_s or 0.0 for calc_s, _ in e) / len(e) for e in peers]
    return ratio_interval(calc, [_mean_comm_s(e) for e in chosen])


def granularity_of_means_values(epochs: Iterable[SwarmEpoch]) -> list[float]:
    """Return a value per measured epoch, whose mean and t interval are `granularity_of_means`. [] if that is None.

    They are no epoch's own ratios, whose mean is another figure (`granularity`), but what each epoch adds to the ratio of
    the means (`metrics.stats.ratio_values`).
    """
    calc_s, comm_s = _mean_seconds(epochs)
    return ratio_values(calc_s, comm_s) if any(comm_s) else []


def granularity_spread(epochs: Iterable[SwarmEpoch]) -> Spread | None:
    """Return the least, median and most of the measured epochs' own mean calculation / mean communication.

    `granularity_of_means` lies between the least and the most. None if no peer ever communicated.
    """
    chosen = zip(*_mean_seconds(epochs), strict=True)
    return spread([calc_s / comm_s for calc_s, comm_s in chosen if comm_s])


def granularity_phase_timed(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the granularity by phase timers, as in the paper.

    The numerator is the sum of a peer's phase timers (move, forward, backward, local optimizer) instead of its wall time.
    Averaged like `granularity`.
    """
    values = [
        math.fsum(ratios) / len(ratios)
        for e in measured(epochs)
        if (ratios := [p.timed_s / p.comm_s for p in e.peers if p.comm_s > 0])
    ]
    return mean_interval(values)


def calculation(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the calculation seconds per peer and epoch: mean over peers, then over the measured epochs."""
    return mean_interval([_mean_calc_s(e) for e in measured(epochs) if e.peers])


def communication(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the communication seconds per peer and epoch: mean over peers, then over the measured epochs.

    None if no peer ever synchronised (a plain training loop).
    """
    means = [_mean_comm_s(e) for e in measured(epochs) if e.peers]
    return mean_interval(means) if any(means) else None


def overlapped(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the communication seconds during which a peer calculated. None if no round overlapped with calculation."""
    means = [math.fsum(p.overlapped_s for p in e.peers) / len(e.peers) for e in measured(epochs) if e.peers]
    return mean_interval(means) if any(means) else None


def _mean_seconds(epochs: Iterable[SwarmEpoch]) -> tuple[list[float], list[float]]:
    """Calculation and communication seconds of each measured epoch, mean over its peers."""
    chosen = [e for e in measured(epochs) if e.peers]
    return [_mean_calc_s(e) for e in chosen], [_mean_comm_s(e) for e in chosen]


def _mean_calc_s(epoch: SwarmEpoch) -> float:
    return math.fsum(p.calc_s for p in epoch.peers) / len(epoch.peers)


def _mean_comm_s(epoch: SwarmEpoch) -> float:
    return math.fsum(p.comm_s for p in epoch.peers) / len(epoch.peers)
