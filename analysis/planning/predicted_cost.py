"""Dollars and time of a predicted experiment. Pure.

An epoch costs its VMs' hours and its egress between peers: the figure `usd_per_1m` of measured runs (metrics.run_cost).
Intervals are of the dollars of the prediction's simulated runs, in which seconds and bytes vary, and preemptions where there
are histories of them. Prices do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from analysis.planning.prediction import Prediction, Value, rounded
from analysis.planning.preemptions import Preempted

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class PredictedCost:
    """Dollars of VMs and of egress between peers. None: a price, or the epoch's seconds, are unknown."""

    samples: int  # of all epochs
    usd_per_h: Value | None
    usd_per_1m_samples: Value | None
    time_to_samples_s: Value | None
    usd_to_samples: Value | None
    unknown: tuple[str, ...] = ()  # why dollars are unknown, besides the prediction's own reasons

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "samples": self.samples,
            "usd_per_h": rounded(self.usd_per_h),
            "usd_per_1m_samples": rounded(self.usd_per_1m_samples),
            "time_to_samples_s": rounded(self.time_to_samples_s),
            "usd_to_samples": rounded(self.usd_to_samples),
        }


def cost_of(
    p: Prediction,
    target_batch_size: int,
    samples: int,
    vm_usd_per_h: Decimal | None,
    preempted: Preempted | None = None,
) -> PredictedCost:
    """Return the dollars of a prediction. `vm_usd_per_h`: all VMs together, without traffic; None: unknown.

    Without simulated runs the time has the interval of the epoch's seconds, and dollars are unknown.

    `preempted`: what preemptions leave in the simulated runs; then fewer samples are trained in an hour, and fewer VMs
    billed. A sample's egress stays that of an epoch with all peers.
    """
    epoch, egress, runs = p.epoch_s, p.egress_usd_per_epoch, p.simulated
    if epoch is None:
        return PredictedCost(samples, None, None, None, None)
    epochs = samples / target_batch_size
    unpriced = ("a VM has no price",) if vm_usd_per_h is None else ()
    if runs is None:
        time = Value(epoch.value * epochs, epoch.low * epochs, epoch.high * epochs)
        return PredictedCost(samples, None, None, time, None, unpriced)
    left, billed = (1.0, 1.0), (1.0, 1.0)  # the median, and the share of each simulated run
    if preempted is not None:
        left = float(np.median(preempted.sps)), preempted.sps
        billed = float(np.median(preempted.billed)), preempted.billed
        if np.count_nonzero(preempted.sps <= 0) * 20 >= preempted.sps.size:
            why = (
                "in a twentieth of the histories' stretches no peer trains at all, so the time has no upper bound",
            )
            return PredictedCost(samples, None, None, None, None, why)
    # A run without any training never ends, whatever is billed; the interval leaves such runs out.
    with np.errstate(divide="ignore", invalid="ignore"):
        slowed = epoch.value / left[0], runs.epoch_s / left[1]
        time = _with_interval(slowed[0] * epochs, slowed[1] * epochs)
        if vm_usd_per_h is None or egress is None or runs.egress_usd is None:
            return PredictedCost(samples, None, None, time, None, unpriced)
        vms, sent, sent_in_runs = float(vm_usd_per_h), float(egress), runs.egress_usd

        def dollars(of: Callable[[Any, Any, Any], Any]) -> Value:
            """Calculate from seconds, egress and billed share of an epoch, and in each simulated run."""
            return _with_interval(of(slowed[0], sent, billed[0]), of(slowed[1], sent_in_runs, billed[1]))

        return PredictedCost(
            samples,
            usd_per_h=dollars(lambda s, usd, b: vms * b + usd * _HOUR_S / s),
            usd_per_1m_samples=dollars(
                lambda s, usd, b: (vms * b * s / _HOUR_S + usd) / target_batch_size * 1e6
            ),
            time_to_samples_s=time,
            usd_to_samples=dollars(lambda s, usd, b: (vms * b * s / _HOUR_S + usd) * epochs),
        )


def _with_interval(value: Any, runs: Any) -> Value:
    low, high = np.quantile(np.where(np.isnan(runs), np.inf, runs), [0.05, 0.95])
    return Value(float(value), float(low), float(high))
