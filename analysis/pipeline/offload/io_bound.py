"""Stage 1 of the two-stage profile: whether fetching limits training (Wang et al., HotStorage 2024, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from metrics.stats import Estimate


class IoBound(StrEnum):
    """Whether the input is I/O-bound; only `YES` lets the time of a pass be a reason to offload."""

    YES = "io_bound"
    TRAINER = "trainer_slowest"
    PREPROCESSING = "preprocessing_slowest"
    OVERLAP = "overlap"  # fetching is slowest, but not beyond the intervals
    UNKNOWN = "trainer_unknown"  # fetching is slower than preprocessing, and nothing is known of the trainer


def io_bound(fetch_sps: Estimate, preprocess_sps: Estimate, trainer_sps: Estimate | None) -> IoBound:
    """Compare the three rates, each measured without the other two; samples per second.

    I/O-bound: the interval of fetching lies below those of preprocessing and of the trainer. A rate without an interval
    overlaps with all others.
    """
    others: Mapping[IoBound, Estimate] = {IoBound.PREPROCESSING: preprocess_sps} | (
        {} if trainer_sps is None else {IoBound.TRAINER: trainer_sps}
    )
    slowest = min(others, key=lambda code: others[code].value)
    if others[slowest].value < fetch_sps.value:
        return slowest
    if not all(_below(fetch_sps, other) for other in others.values()):
        return IoBound.OVERLAP
    return IoBound.UNKNOWN if trainer_sps is None else IoBound.YES


def exactly(value: float) -> Estimate:
    """A rate that is given, not measured: its interval has no width."""
    return Estimate(value, value, value, 1)


def _below(one: Estimate, other: Estimate) -> bool:
    return one.high is not None and other.low is not None and one.high < other.low
