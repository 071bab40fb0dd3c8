"""Shapes of an emulated model's ballast, reduced by `bytes_scale` such that they are sent in the same way as the model.

Without PowerSGD only the number of values matters. With it, an m x n matrix is sent as rank x (m + n) values. Matrices
with both sides divided by s would have too few values, and matrices with their values divided by s would send too many.
Reducing the number of matrices scales both: a model with rows R, columns C (sums over its matrices) and A values has, at
scale s, ballast matrices whose rows add up to R/s, columns to C/s and values to A/s. Shares x of both sums satisfy this if
they add up to 1 and their squares to A s / (R C). Above s = R C / A not even a single matrix has enough values.
Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.averaging.model_shapes import model_shapes
from experiments.averaging.powersgd import factored, factors_of, sent
from experiments.averaging.records import Compression
from experiments.catalog import models

TRAINED = "digits"  # the small network that is actually trained, next to the ballast


@dataclass(frozen=True, slots=True)
class Ballast:
    """Composition of an emulated model."""

    parameters: int  # total, including the trained network
    matrices: tuple[tuple[int, int], ...] = ()  # rows and columns; the rest of the ballast is vectors


def ballast(model: str, compression: Compression, scale: float) -> Ballast | None:
    """Compute the ballast of a model at a scale. None if none would be sent like the model (see `largest_scale`).

    The number of values sent is exact. With PowerSGD, `parameters` may be off by some per cent, because sides are whole
    numbers and matrices that are too small to be factored are left out.
    """
    total = max(1, round(models()[model].parameters / scale))
    rank = compression.rank
    if rank is None or model == TRAINED:
        return Ballast(total)
    full, own = factors_of(model, rank), sent(model_shapes()[TRAINED], rank)
    rows, columns = full.rows / scale - own.rows, full.columns / scale - own.columns
    values = full.values / scale - own.values
    # if the trained network sends more unfactored values than the scaled model, shorten the factors accordingly
    excess = max(0.0, own.whole - full.whole / scale)
    shorter = excess / rank / (rows + columns) if rows + columns > 0 else 1.0
    rows, columns = rows * (1 - shorter), columns * (1 - shorter)
    if min(rows, columns, values) <= 0 or rows * columns < values:
        return None
    sides = [(int(x * rows), int(x * columns)) for x in _shares(values / (rows * columns))]
    matrices = tuple(pair for pair in sides if factored(pair, rank) is not None)
    vectors = round(full.wire / scale) - own.wire - rank * sum(m + n for m, n in matrices)
    if not matrices:
        return None
    trained = models()[TRAINED].parameters
    return Ballast(trained + sum(m * n for m, n in matrices) + vectors, matrices)


def _shares(squares: float) -> list[float]:
    """Return the fewest numbers whose sum is 1 and whose squares add up to `squares` (at most 1).

    All are equal except for one smaller number.
    """
    count = max(1, math.ceil(1 / squares - 1e-9))
    if count == 1:
        return [1.0]
    small = (1 - math.sqrt(max(0.0, (count - 1) * (count * squares - 1)))) / count
    return [(1 - small) / (count - 1)] * (count - 1) + [small]


def largest_scale(model: str, compression: Compression) -> int:
    """Return the largest whole bytes_scale at which the model can be emulated with this compression, at least 1."""
    low, high = 1, max(1, models()[model].parameters // models()[TRAINED].parameters)
    while low < high:
        middle = (low + high + 1) // 2
        if ballast(model, compression, middle) is None:
            high = middle - 1
        else:
            low = middle
    return low


def ballast_error(model: str, compression: Compression, scale: float) -> str:
    """Return the error message for a scale without a `ballast`."""
    return (
        f"bytes_scale {scale:g} is too large to emulate how {compression.name} sends the matrices of {model}; "
        f"the maximum is {largest_scale(model, compression)}"
    )
