"""Dollars and time of a predicted experiment. Pure.

An epoch costs its VMs' hours and its egress between peers: the figure `usd_per_1m` of measured runs (metrics.run_cost).
Bytes do not depend on an epoch's seconds, so the ends of an interval of seconds are those of the dollars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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
    epoch, egress = p.epoch_s, p.egress_usd_per_epoch
    if epoch is None:
        return PredictedCost(samples, None, None, None, None)
    epochs = samples / target_batch_size
    time = _of(epoch, lambda s: s * epochs)
    if vm_usd_per_h is None or egress is None:
        why = ("a VM has no price",) if vm_usd_per_h is None else ()
        return PredictedCost(samples, None, None, time, None, why)
    vms, sent = float(vm_usd_per_h), float(egress)
    return PredictedCost(
        samples,
        usd_per_h=_of(epoch, lambda s: vms + sent * _HOUR_S / s),
        usd_per_1m_samples=_of(epoch, lambda s: (vms * s / _HOUR_S + sent) / target_batch_size * 1e6),
        time_to_samples_s=time,
        usd_to_samples=_of(epoch, lambda s: (vms * s / _HOUR_S + sent) * epochs),
    )


def _of(epoch_s: Value, function: Callable[[float], float]) -> Value:
    """Return a monotonic function of the epoch's seconds, and its interval."""
    ends = (function(epoch_s.low), function(epoch_s.high))
    return Value(function(epoch_s.value), min(ends), max(ends))
