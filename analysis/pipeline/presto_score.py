"""PRESTO's score of strategies (Isenko et al., SIGMOD 2022): offline seconds, stored bytes and delivered samples/s. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.pipeline.profile_records import Measurement


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of offline seconds, stored bytes and T4. Raises ValueError unless they are 0 or more, and one is above 0."""

    offline: float
    stored: float
    delivered: float

    def __post_init__(self) -> None:
        all_three = (self.offline, self.stored, self.delivered)
        if not all(0 <= weight < float("inf") for weight in all_three) or not any(all_three):
            raise ValueError("the weights must be 0 or more, and one of them above 0")

    @classmethod
    def parse(cls, text: str) -> Weights:
        """Parse "1,0.5,2". Raises ValueError with one sentence."""
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != 3:
            raise ValueError(
                f"'{text[:80]}' is not three weights; write those of offline seconds, stored bytes and samples/s, such as 1,1,1"
            )
        return cls(*numbers)


def scores(measurements: Sequence[Measurement], weights: Weights) -> list[float | None]:
    """Return w_p (1 - p') + w_s (1 - s') + w_t t' of each strategy; the highest is best.

    p, s and t are a sample's offline and save seconds (0 if nothing runs offline), its stored bytes, and T4, each min-max
    scaled over the strategies; 0 if all are equal. None: the seconds were not measured.
    """
    offline = scaled([offline_s(m) for m in measurements])
    stored = scaled([m.stored_bytes for m in measurements])
    delivered = scaled([m.delivered_sps.value for m in measurements])
    return [
        None
        if p is None or s is None or t is None
        else weights.offline * (1 - p) + weights.stored * (1 - s) + weights.delivered * t
        for p, s, t in zip(offline, stored, delivered, strict=True)
    ]


def offline_s(measured: Measurement) -> float | None:
    """Seconds a sample to run and store the first operations. None: not measured."""
    if not measured.strategy.split:
        return 0.0
    return (
        None
        if measured.offline_s is None or measured.save_s is None
        else measured.offline_s + measured.save_s
    )


def scaled(values: Sequence[float | None]) -> list[float | None]:
    """Scale the known values to 0 ... 1; all 0 if they are equal."""
    known = [value for value in values if value is not None]
    if not known:
        return list(values)
    low, width = min(known), max(known) - min(known)
    return [None if v is None else (v - low) / width if width else 0.0 for v in values]
