"""Which gradients PowerSGD sends as two thin factors, and how many values that makes. Pure, without torch.

Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019
(arXiv:1905.13727). The plan and the peer both ask here, so that what is predicted is what is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_RANK = 64
_NAME = re.compile("powersgd:([1-9][0-9]?)")
_WORTH = 2  # both factors together have at most half of the matrix's values, as in Hivemind


def power_sgd_rank(compression: str) -> int | None:
    """The rank of `powersgd:<rank>`; None for anything else, a rank above `MOST_RANK` included."""
    found = _NAME.fullmatch(compression)
    rank = int(found[1]) if found else None
    return rank if rank is not None and rank <= MOST_RANK else None


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
