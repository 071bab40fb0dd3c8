"""The shapes of an emulated model's ballast: as small as `bytes_scale` asks for, and sent as the model itself would be.

Without PowerSGD only the number of values counts. With it a matrix of m x n is sent as rank x (m + n) values, so matrices
that had both sides divided by s would have too few values, and matrices with their values divided by s would send too
much. What shrinks both is fewer of them: a model with rows R, columns C (sums over its matrices) and A values has, at a
scale s, ballast matrices whose rows add up to R/s, columns to C/s and values to A/s. Shares x of both sums do so when
they add up to 1 and their squares to A s / (R C); above s = R C / A not even a single matrix has enough values.
Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.averaging.model_shapes import model_shapes
from experiments.averaging.powersgd import factored, factors_of, sent
from experiments.averaging.records import Compression
from experiments.catalog import models

LEARNS = "digits"  # the small network that really learns, beside the ballast


@dataclass(frozen=True, slots=True)
class Ballast:
    """What the emulated model is made of."""

    parameters: int  # in all, with the network that learns
    matrices: tuple[tuple[int, int], ...] = ()  # rows and columns; what else the ballast has are vectors


def ballast(model: str, compression: Compression, scale: float) -> Ballast | None:
    """For a model at a scale; None: there is none that would be sent as the model is (see `largest_scale`).

    What is sent is exact to the value. With PowerSGD `parameters` may be off by some per cent: sides are whole, and a matrix too
    small to be factored is left out.
    """
    total = max(1, round(models()[model].parameters / scale))
    rank = compression.rank
    if rank is None or model == LEARNS:
        return Ballast(total)
    full, own = factors_of(model, rank), sent(model_shapes()[LEARNS], rank)
    rows, columns = full.rows / scale - own.rows, full.columns / scale - own.columns
    values = full.values / scale - own.values
    # where the network that learns sends more whole than the model would, its factors are as much shorter
    lacking = max(0.0, own.whole - full.whole / scale)
    shorter = lacking / rank / (rows + columns) if rows + columns > 0 else 1.0
    rows, columns = rows * (1 - shorter), columns * (1 - shorter)
    if min(rows, columns, values) <= 0 or rows * columns < values:
        return None
    sides = [(int(x * rows), int(x * columns)) for x in _shares(values / (rows * columns))]
    matrices = tuple(pair for pair in sides if factored(pair, rank) is not None)
    vectors = round(full.wire / scale) - own.wire - rank * sum(m + n for m, n in matrices)
    if not matrices:
        return None
    learns = models()[LEARNS].parameters
    return Ballast(learns + sum(m * n for m, n in matrices) + vectors, matrices)


def _shares(squares: float) -> list[float]:
    """The fewest numbers that add up to 1 and their squares to `squares` (at most 1): equal ones and a smaller one."""
    count = max(1, math.ceil(1 / squares - 1e-9))
    if count == 1:
        return [1.0]
    small = (1 - math.sqrt(max(0.0, (count - 1) * (count * squares - 1)))) / count
    return [(1 - small) / (count - 1)] * (count - 1) + [small]


def largest_scale(model: str, compression: Compression) -> int:
    """The largest whole bytes_scale at which the model can be emulated with this compression; at least 1."""
    low, high = 1, max(1, models()[model].parameters // models()[LEARNS].parameters)
    while low < high:
        middle = (low + high + 1) // 2
        if ballast(model, compression, middle) is None:
            high = middle - 1
        else:
            low = middle
    return low


def shapes_lost(model: str, compression: Compression, scale: float) -> str:
    """Why there is no `ballast`, and what to do."""
    return (
        f"at bytes_scale {scale:g} no matrices are sent by {compression.name} as {model}'s are; "
        f"at most {largest_scale(model, compression)} will do"
    )
