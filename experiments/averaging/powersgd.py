"""`compression: powersgd:<rank>`: which gradients are sent as two low-rank factors, and how many values that makes.

Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019
(arXiv:1905.13727). The plan and the peer share this module, so the predicted bytes are those that are sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from experiments.averaging.model_shapes import Shapes, model_shapes
from experiments.averaging.records import (
    AveragingMethod,
    Compression,
    CompressionFamily,
    Problem,
    Setting,
    name_of,
)

MAX_RANK = 64
_NAME = re.compile("powersgd:([1-9][0-9]?)")
_MIN_REDUCTION = 2  # both factors together have at most half of the matrix's values, as in Hivemind


def factored(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Return the rows and columns of the matrix to be factored for a tensor of this shape. None: it is sent unfactored.

    A tensor with more than two dimensions (a convolution) becomes a matrix of its first dimension against all others.
    """
    if len(shape) < 2:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows, columns) if _MIN_REDUCTION * rank * (rows + columns) <= rows * columns else None


@dataclass(frozen=True, slots=True)
class Sent:
    """How a set of tensors is sent: sums over the factored matrices, and the values sent unfactored."""

    rows: int
    columns: int
    values: int  # in the factored matrices
    whole: int  # in all other tensors
    rank: int

    @property
    def wire(self) -> int:
        """Number of values that one peer's gradients are sent as: left factors, right factors and the rest."""
        return self.rank * (self.rows + self.columns) + self.whole


def sent(shapes: Iterable[tuple[Sequence[int], int]], rank: int) -> Sent:
    """Compute how tensors, given as (shape, count), are sent at a rank."""
    rows = columns = values = whole = 0
    for shape, count in shapes:
        if (sides := factored(shape, rank)) is None:
            whole += count * math.prod(shape)
        else:
            rows += count * sides[0]
            columns += count * sides[1]
            values += count * sides[0] * sides[1]
    return Sent(rows, columns, values, whole, rank)


@cache
def factors_of(model: str | Shapes, rank: int) -> Sent:
    """Compute how a model's gradients are sent at a rank. `model`: its name, or its shapes.

    Raises KeyError for an unknown name.
    """
    return sent(model_shapes()[model] if isinstance(model, str) else model, rank)


def _sent_values(rank: int, model: str | Shapes | None, parameters: int) -> int:
    return parameters if model is None else factors_of(model, rank).wire


def halves(model: str | Shapes, rank: int) -> bool:
    """Whether at most half of the model's values are sent. Raises KeyError for an unknown model."""
    found = factors_of(model, rank)
    return 2 * found.wire <= found.values + found.whole


def _problems(rank: int, method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    name = method.compression.name
    if not method.exchange.whole_group:
        yield (
            ("swarm", "compression"),
            f"'{name}' is averaged in two rounds that need all peers in one group, which averaging "
            f"{method.exchange.name} does not have; use float16, or averaging: flat",
        )
    if setting.model is not None and not halves(setting.model, rank):
        found = factors_of(setting.model, rank)
        yield (
            ("swarm", "compression"),
            f"'{name}' sends {found.wire} of {name_of(setting.model)}'s {found.values + found.whole} values: its matrices are too "
            "small for this rank; use a lower rank, or float16",
        )


def _parse(name: str) -> Compression | None:
    found = _NAME.fullmatch(name)
    if found is None or (rank := int(found[1])) > MAX_RANK:
        return None
    return Compression(
        name=name,
        problems=partial(_problems, rank),
        bits_per_value=16,
        sent_values=partial(_sent_values, rank),
        rank=rank,
        exchanges=2,
        value_format="float16",  # of factors and unfactored values
        codec="Float16Compression",
        averager="PowerSgdAverager",
    )


POWERSGD = CompressionFamily(
    form=f"powersgd:<rank> with a rank from 1 to {MAX_RANK}",
    pattern="^powersgd:([1-9]|[1-5][0-9]|6[0-4])$",
    meaning=f"powersgd:4, which sends each large matrix as two factors of this rank (1 to {MAX_RANK}) and adds the "
    "approximation error to later rounds",
    parse=_parse,
)
