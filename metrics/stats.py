"""Means with 95 % t intervals, without scipy.

The interval is Student's t over epochs (n is their number). At n = 2 it extends 9 standard deviations to
each side; it is reported as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, its 95 % interval (None, None when n = 1) and the number of observations behind it."""

    value: float
    low: float | None
    high: float | None
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """`{"value", "low", "high", "n"}`."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread: the least, the median, the most, and how many there are."""

    least: float
    median: float
    most: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        """`{"least", "median", "most", "n"}`."""
        return {"least": self.least, "median": self.median, "most": self.most, "n": self.n}


def spread(values: Sequence[float]) -> Spread | None:
    """The least, the median and the most; None for no values."""
    return Spread(min(values), median(values), max(values), len(values)) if values else None


def mean_interval(values: Sequence[float]) -> Estimate | None:
    """Return the mean with its t interval. None without values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    half = t_interval_half(values)
    return Estimate(mean, None, None, 1) if half is None else Estimate(mean, mean - half, mean + half, n)


def t_interval_half(values: Sequence[float]) -> float | None:
    """Half the width of the mean's 95 % t interval; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return t_quantile(n - 1) * math.sqrt(variance / n)


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate | None:
    """Return sum of numerators / sum of denominators with the t interval of the ratio estimator. None without pairs.

    The variance is that of the residuals y - R x (Cochran, Sampling Techniques, 3rd ed., chapter 6,
    without the finite population correction). Raises ValueError if the lengths differ or the denominators'
    sum is not positive.
    """
    n = len(numerators)
    if n != len(denominators):
        raise ValueError(f"{n} numerators, {len(denominators)} denominators")
    if n == 0:
        return None
    total = math.fsum(denominators)
    if total <= 0:
        raise ValueError("the denominators' sum is not positive")
    ratio = math.fsum(numerators) / total
    if n == 1:
        return Estimate(ratio, None, None, 1)
    residual = math.fsum((y - ratio * x) ** 2 for y, x in zip(numerators, denominators, strict=True))
    half = t_quantile(n - 1) * math.sqrt(residual / (n - 1) / n) / (total / n)
    return Estimate(ratio, ratio - half, ratio + half, n)


def ratio_values(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return one value per pair, R + (y - R x) / mean x with R = sum y / sum x: the ratio estimator, linearised.

    Their mean is R and their t interval is `ratio_interval`'s, so that they stand for a ratio of means wherever a mean's
    values are expected, as in `quotient_spread` (the delta method: Cochran, Sampling Techniques, 3rd ed., chapter 6). Raises
    ValueError if the denominators' sum is not positive.
    """
    total = math.fsum(denominators)
    if total <= 0:
        raise ValueError("the denominators' sum is not positive")
    ratio, mean = math.fsum(numerators) / total, total / len(denominators)
    return [ratio + (y - ratio * x) / mean for y, x in zip(numerators, denominators, strict=True)]


def quotient_spread(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """Return half the 95 % interval of the logarithm of mean / mean of two independent samples.

    It is t times the root of the sum of both squared relative standard errors (the delta method on the logarithm: Casella
    & Berger, Statistical Inference, 2nd ed., 5.5.24), with Welch's degrees of freedom (Biometrika 34, 1947), rounded
    down. None if a sample has fewer than two values. Raises ValueError if a mean is not positive.
    """
    parts: list[tuple[float, int]] = []  # relative squared standard error, degrees of freedom
    for values in (numerators, denominators):
        n = len(values)
        if n < 2:
            return None
        mean = math.fsum(values) / n
        if mean <= 0:
            raise ValueError("a mean is not positive")
        variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
        parts.append((variance / n / mean**2, n - 1))
    squared = math.fsum(part for part, _ in parts)
    below = math.fsum(part**2 / degrees for part, degrees in parts)
    if below == 0:  # the spread is 0, or underflows a float
        return 0.0
    return t_quantile(max(1, math.floor(squared**2 / below))) * math.sqrt(squared)


@cache
def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return t with P(|T| <= t) = confidence for a whole number of degrees of freedom.

    Bisection of the finite series in Abramowitz & Stegun 26.7.3 and 26.7.4. Raises ValueError for
    degrees < 1 or a confidence outside (0, 1).
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t quantile for {degrees} degrees of freedom at {confidence}")
    low, high = 0.0, 1.0
    while _central_probability(high, degrees) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _central_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _central_probability(t: float, degrees: int) -> float:
    """P(|T| <= t)."""
    theta = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    if degrees == 1:
        return 2 * theta / math.pi
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term
    for k in range(2 + odd, degrees, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
