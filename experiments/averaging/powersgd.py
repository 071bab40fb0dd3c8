"""`compression: powersgd:<rank>`: which gradients are sent as two thin factors, and how many values that makes.

Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019
(arXiv:1905.13727). The plan and the peer both use this module, so what is predicted is what is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from experiments.averaging.model_shapes import model_shapes
from experiments.averaging.records import AveragingMethod, Compression, CompressionFamily, Problem, Setting

MOST_RANK = 64
_NAME = re.compile("powersgd:([1-9][0-9]?)")
_WORTH = 2  # both factors together have at most half of the matrix's values, as in Hivemind


def factored(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Rows and columns of the matrix that a tensor of this shape is sent as factors of; None: it is sent whole.

    A tensor of more than two dimensions (a convolution) is a matrix of its first against all others.
    """
    if len(shape) < 2:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows, columns) if _WORTH * rank * (rows + columns) <= rows * columns else None


@dataclass(frozen=True, slots=True)
class Sent:
    """What becomes of some tensors: sums over those that are factored, and what is sent whole."""

    rows: int
    columns: int
    values: int  # of the factored matrices
    whole: int  # values of all other tensors
    rank: int

    @property
    def wire(self) -> int:
        """Values that one peer's gradients are sent as: a left factor, a right one, the rest."""
        return self.rank * (self.rows + self.columns) + self.whole


def sent(shapes: Iterable[tuple[Sequence[int], int]], rank: int) -> Sent:
    """Of tensors given as (shape, how many of it)."""
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
def factors_of(model: str, rank: int) -> Sent:
    """What PowerSGD of that rank makes of the model's gradients. Raises KeyError for an unknown model."""
    return sent(model_shapes()[model], rank)


def _sent_values(rank: int, model: str | None, parameters: int) -> int:
    return parameters if model is None else factors_of(model, rank).wire


def halves(model: str, rank: int) -> bool:
    """Whether at most half of the model's values are sent. Raises KeyError for an unknown model."""
    found = factors_of(model, rank)
    return 2 * found.wire <= found.values + found.whole


def _problems(rank: int, method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    name = method.compression.name
    if not method.exchange.whole_group:
        yield (
            ("swarm", "compression"),
            f"'{name}' is averaged in two rounds that need the whole group, which averaging "
            f"{method.exchange.name} does not have; write float16, or averaging: flat",
        )
    if setting.model is not None and not halves(setting.model, rank):
        found = factors_of(setting.model, rank)
        yield (
            ("swarm", "compression"),
            f"'{name}' sends {found.wire} of {setting.model}'s {found.values + found.whole} values: its matrices are too "
            "small for that rank; take a lower one, or float16",
        )


def _parse(name: str) -> Compression | None:
    found = _NAME.fullmatch(name)
    if found is None or (rank := int(found[1])) > MOST_RANK:
        return None
    return Compression(
        name=name,
        problems=partial(_problems, rank),
        bits_per_value=16,
        sent_values=partial(_sent_values, rank),
        rank=rank,
        value_format="float16",  # factors, and what is sent whole
        codec="Float16Compression",
        averager="PowerSgdAverager",
    )


POWERSGD = CompressionFamily(
    form=f"powersgd:<rank> with a rank from 1 to {MOST_RANK}",
    pattern="^powersgd:([1-9]|[1-5][0-9]|6[0-4])$",
    meaning=f"powersgd:4, which sends each large matrix as two factors of that rank (1 to {MOST_RANK}), and what that "
    "leaves out in later rounds",
    parse=_parse,
)
