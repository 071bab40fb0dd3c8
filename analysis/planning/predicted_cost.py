"""Dollars and time of a predicted experiment. Pure.

An epoch costs its VMs' hours and its egress between peers: the figure `usd_per_1m` of measured runs (metrics.run_cost).
Intervals are of the dollars of the prediction's simulated runs, in which both seconds and bytes vary. Prices do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from analysis.planning.prediction import Prediction, Value, rounded

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
    p: Prediction, target_batch_size: int, samples: int, vm_usd_per_h: Decimal | None
) -> PredictedCost:
    """Return the dollars of a prediction. `vm_usd_per_h`: all VMs together, without traffic; None: unknown."""
    epoch, egress, runs = p.epoch_s, p.egress_usd_per_epoch, p.simulated
    if epoch is None:
        return PredictedCost(samples, None, None, None, None)
    epochs = samples / target_batch_size
    time = Value(epoch.value * epochs, epoch.low * epochs, epoch.high * epochs)
    if vm_usd_per_h is None or egress is None or runs is None or runs.egress_usd is None:
        why = ("a VM has no price",) if vm_usd_per_h is None else ()
        return PredictedCost(samples, None, None, time, None, why)
    vms, sent, sent_in_runs = float(vm_usd_per_h), float(egress), runs.egress_usd

    def dollars(of: Callable[[Any, Any], Any]) -> Value:
        """Calculate from seconds and egress of an epoch, and in each simulated run."""
        low, high = np.quantile(of(runs.epoch_s, sent_in_runs), [0.05, 0.95])
        return Value(of(epoch.value, sent), float(low), float(high))

    return PredictedCost(
        samples,
        usd_per_h=dollars(lambda s, usd: vms + usd * _HOUR_S / s),
        usd_per_1m_samples=dollars(lambda s, usd: (vms * s / _HOUR_S + usd) / target_batch_size * 1e6),
        time_to_samples_s=time,
        usd_to_samples=dollars(lambda s, usd: (vms * s / _HOUR_S + usd) * epochs),
    )
