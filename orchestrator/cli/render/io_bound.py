"""What stage 1 of a two-stage profile says, as a sentence."""

from __future__ import annotations

from math import isinf

from analysis.pipeline.offload.io_bound import IoBound, io_bound
from metrics.stats import Estimate

_DOLLARS = "offloading for time is off; for dollars use --objective usd, because bytes cost money even when nobody waits for them"


def io_bound_text(fetch_sps: Estimate, preprocess_sps: Estimate, trainer_sps: Estimate | None) -> str:
    """One sentence with the three rates and what follows from them."""
    trainer = "unknown" if trainer_sps is None else _rate(trainer_sps)
    rates = f"fetching {_rate(fetch_sps)}, preprocessing {_rate(preprocess_sps)}, trainer {trainer} samples/s"
    match io_bound(fetch_sps, preprocess_sps, trainer_sps):
        case IoBound.YES:
            return f"The input is I/O-bound ({rates}), so offloading can save time."
        case IoBound.TRAINER:
            return f"The trainer is slowest ({rates}), so {_DOLLARS}."
        case IoBound.PREPROCESSING:
            return f"Preprocessing is slowest ({rates}), so {_DOLLARS}."
        case IoBound.OVERLAP:
            return f"Fetching is not slowest beyond the intervals ({rates}), so {_DOLLARS}."
        case IoBound.UNKNOWN:
            return (
                f"The trainer's rate is unknown ({rates}), so {_DOLLARS}; profile with --sps-per-peer, or plan with "
                "--trainer-s."
            )


def _rate(rate: Estimate) -> str:
    if isinf(rate.value):
        return "unlimited"
    if rate.low is None or rate.high is None or rate.low == rate.high:
        return f"{rate.value:.4g}"
    return f"{rate.value:.4g} ({rate.low:.4g} to {rate.high:.4g})"
