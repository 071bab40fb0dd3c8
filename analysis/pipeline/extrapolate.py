"""What a sample of a data set says of the whole, and how well it said it of a second, disjoint sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.pipeline.profile_records import Extrapolation
from metrics.stats import mean_interval

_BLOCK_BYTES = 512  # of a tar


def tar_bytes(member_bytes: Sequence[int]) -> int:
    """Bytes that a sample with members of these sizes takes in a tar: a header each, contents in whole blocks."""
    return sum(_BLOCK_BYTES * (1 + math.ceil(size / _BLOCK_BYTES)) for size in member_bytes)


def extrapolate(
    total_samples: int,
    stored_bytes: Sequence[float],
    offline_s: Sequence[float] | None,
    second_bytes: Sequence[float],
) -> Extrapolation:
    """Scale the measured samples (one value each) to `total_samples`. Raises ValueError without a measured sample."""
    stored = mean_interval([value * total_samples for value in stored_bytes])
    if stored is None:
        raise ValueError("no sample was measured")
    error = None
    if second_bytes and stored.value:
        second = math.fsum(second_bytes) / len(second_bytes)
        error = 100 * (second * total_samples / stored.value - 1)
    return Extrapolation(
        total_samples=total_samples,
        stored_bytes=stored,
        offline_s=None if offline_s is None else mean_interval([s * total_samples for s in offline_s]),
        second_samples=len(second_bytes),
        second_error_percent=error,
    )
