"""PowerSGD arithmetic on one peer: the two halves it sends in a round, and the data it keeps for the next round.

Vogels, Karimireddy, Jaggi, NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2. Each peer adds the remainder of earlier
rounds to its gradient M (rows x columns). M Q is averaged and orthonormalised, which gives the left factor P. The average
of M' P is the right factor, and P times it is the gradient with which all peers step. Each peer keeps its own remainder
M - P (M' P)', as in the text of that publication; its code (and Hivemind) subtracts the average over all peers. Both
preserve the mean of all gradients over the rounds.

A round averages sum(w_i M_i) / W, where w_i are the samples of a peer and W is their sum. A remainder e_i represents
w_i e_i of that sum. Adding it as (w_then / w_now) e_i preserves this: W times the average, summed over all rounds, plus
the final w_i e_i of each peer equals the gradients of all samples, whatever weights the peers have in each round.

No threads, clocks or network. Everything is float32 on the CPU, except float64 in `orthonormal`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiments.averaging.powersgd import factored, sent

MOST_TIMES = 4.0  # maximum factor of a remainder in a round: float16 ends at 65504
_NOISE = 1e-3  # relative norm that float16 rounding leaves of a column that is a linear combination of others
_SMALL = 1e-30


@dataclass(frozen=True)
class Factors:
    """A round's two averages as received, from which all peers build the same gradients (`rebuild`)."""

    rank: int
    left: torch.Tensor  # one dimension: the left factors, not yet orthonormal
    right: torch.Tensor  # one dimension: the right factors, then the gradients that are sent whole


@dataclass(frozen=True)
class Kept:
    """Data that a round leaves for the next one with the resulting weights; one entry per factored gradient."""

    lineage: str  # of the weights after the round, if it succeeded
    remainders: tuple[torch.Tensor, ...]  # this peer's own: rows x columns
    rights: tuple[torch.Tensor, ...]  # averaged: columns x rank, bitwise equal on all peers
    weight: float  # this peer's weight in the round that left the remainders


class Memory:
    """Data left by the last two rounds: a peer learns only after a round whether it succeeded.

    It succeeded if the peer enters its next round with the lineage that the round produced. A peer for which it failed has
    its previous lineage and retries with its previous data. One that downloaded the state has another lineage.
    """

    def __init__(self) -> None:
        self._kept: list[Kept] = []

    @property
    def lineages(self) -> list[str]:
        """Lineages of the kept data, at most two."""
        return [kept.lineage for kept in self._kept]

    def begin(self, lineage: str) -> Kept | None:
        """Return the data kept for a round with weights of that lineage, and drop all other data."""
        self._kept = [kept for kept in self._kept if kept.lineage == lineage][:1]
        return self._kept[0] if self._kept else None

    def keep(self, kept: Kept) -> None:
        """Keep the data of a round that may succeed."""
        self._kept.append(kept)


class LowRankRound:
    """One attempt at a round: `left`, average it, `right`, average it, `finish`. The gradients change in `finish` only."""

    def __init__(
        self,
        gradients: Sequence[torch.Tensor],
        rank: int,
        kept: Kept | None,
        *,
        weight: float,
        warm: bool,
        seed: int,
        epoch: int,
    ) -> None:
        """`weight`: this peer's weight in the averages. `warm`: begin with the right factors of `kept`, like the whole group;
        otherwise with those derived from seed and epoch.

        Raises ValueError if `warm` and there are none.
        """
        if warm and kept is None:
            raise ValueError("the last round's factors are not available")
        self._gradients, self._rank, self._kept, self._weight = gradients, rank, kept, weight
        times = kept.weight / weight if kept is not None and weight > 0 else 0.0
        self._times = min(MOST_TIMES, times)
        self._later = times - self._times  # the excess over the limit stays in the remainder
        self._seed, self._epoch, self._warm = seed, epoch, warm
        self._wanted: list[torch.Tensor] = []
        self._lefts: list[torch.Tensor] = []
        self._rights: list[torch.Tensor] = []

    @torch.no_grad()
    def left(self) -> torch.Tensor:
        """Return the concatenated left factors: the first half to average."""
        found: list[torch.Tensor] = []
        for at, (index, (rows, columns)) in enumerate(self._factored()):
            wanted = self._gradients[index].to(torch.float32).reshape(rows, columns)
            rest = torch.zeros(()) if self._kept is None else self._kept.remainders[at]
            wanted = torch.add(wanted, rest, alpha=self._times)  # always a copy
            self._wanted.append(wanted)
            found.append(wanted @ self._start(at, index, columns))
        return _flat(found)

    def _start(self, at: int, index: int, columns: int) -> torch.Tensor:
        first = first_right(self._seed, self._epoch, index, columns, self._rank)
        if not self._warm or self._kept is None:
            return first
        last = orthonormal(self._kept.rights[at])
        return torch.where(last.abs().amax(0) > 0, last, first)  # a column of zeros would stay zero forever

    @torch.no_grad()
    def right(self, left: torch.Tensor) -> torch.Tensor:
        """Return the right factors and the gradients sent whole: the second half. `left`: the first half's average."""
        self._lefts = _lefts([sides for _, sides in self._factored()], self._rank, left)
        self._rights = [m.T @ p for m, p in zip(self._wanted, self._lefts, strict=True)]
        whole = [gradient.to(torch.float32) for gradient in _whole(self._gradients, self._rank)]
        return _flat([*self._rights, *whole])

    @torch.no_grad()
    def finish(self, right: torch.Tensor, lineage: str) -> Kept:
        """Write the average to the gradients. `right`: the second half's average; `lineage`: of the resulting weights."""
        rights = tuple(_put(self._gradients, self._rank, self._lefts, right))
        kept = self._kept
        if self._weight <= 0:  # this peer did not contribute to the averages, so its remainder is unchanged
            if kept is not None:
                return Kept(lineage, kept.remainders, rights, kept.weight)
            return Kept(lineage, tuple(wanted.zero_() for wanted in self._wanted), rights, 0.0)
        for wanted, left, own in zip(self._wanted, self._lefts, self._rights, strict=True):
            wanted.addmm_(left, own.T, alpha=-1)
        if kept is None or self._later <= 0:
            return Kept(lineage, tuple(self._wanted), rights, self._weight)
        for wanted, rest in zip(self._wanted, kept.remainders, strict=True):
            wanted.add_(rest, alpha=self._later).mul_(self._weight / kept.weight)
        # with the old weight, so that the limit applies again in the next round
        return Kept(lineage, tuple(self._wanted), rights, kept.weight)

    def forget(self) -> None:
        """Release the references to tensors as large as the model. Those returned by `finish` stay valid."""
        self._wanted, self._lefts, self._rights = [], [], []

    def _factored(self) -> list[tuple[int, tuple[int, int]]]:
        return _factored(self._gradients, self._rank)


@torch.no_grad()
def rebuild(gradients: Sequence[torch.Tensor], factors: Factors) -> None:
    """Overwrite the gradients with those that the round's peers computed, using the same code.

    Raises ValueError, without changing anything, if the factors do not fit gradients of these shapes.
    """
    rank = factors.rank
    wire = sent([(tuple(gradient.shape), 1) for gradient in gradients], rank)
    sizes = [(rank * wire.rows,), (rank * wire.columns + wire.whole,)]
    if (given := [tuple(factors.left.shape), tuple(factors.right.shape)]) != sizes:
        raise ValueError(f"factors of {given} values, not {sizes}")
    lefts = _lefts([sides for _, sides in _factored(gradients, rank)], rank, factors.left)
    _put(gradients, rank, lefts, factors.right)


def first_right(seed: int, epoch: int, tensor: int, columns: int, rank: int) -> torch.Tensor:
    """Return an initial right factor (columns x rank) with columns of norm about 1, equal on peers with equal arguments.

    Uses uniform random numbers, which are bitwise equal on every processor; normal ones are not.
    """
    digest = hashlib.sha256(f"powersgd/{seed}/{epoch}/{tensor}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    made = torch.rand((columns, rank), generator=generator)
    return made.sub_(0.5).mul_(math.sqrt(12 / columns))


def orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns. A column that, except for the wire's rounding, is a linear combination of
    previous ones becomes zero.

    What remains of such a column is noise, in a direction that each processor would round differently. Gram-Schmidt,
    applied twice to each column (Giraud, Langou, Rozloznik 2005: twice is enough). NaNs are preserved. In float64,
    differences between processors are far too small to make one keep a column that another drops.
    """
    basis = matrix.T.to(torch.float64, memory_format=torch.contiguous_format, copy=True)
    for k, column in enumerate(basis):
        before = column.norm()
        for _ in range(2):
            column -= basis[:k].T @ (basis[:k] @ column)
        after = column.norm()
        if bool(after <= _NOISE * before + _SMALL):
            column.zero_()
        else:
            column /= after
    return basis.to(matrix.dtype).T


def _factored(tensors: Sequence[torch.Tensor], rank: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the index and the sides of each tensor that is sent as factors."""
    found = [(index, factored(tensor.shape, rank)) for index, tensor in enumerate(tensors)]
    return [(index, sides) for index, sides in found if sides is not None]


def _whole(tensors: Sequence[torch.Tensor], rank: int) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if factored(tensor.shape, rank) is None]


def _lefts(sides: Sequence[tuple[int, int]], rank: int, left: torch.Tensor) -> list[torch.Tensor]:
    """Convert the first half's average to orthonormal left factors."""
    return [orthonormal(factor) for factor in _unflattened(left, [(rows, rank) for rows, _ in sides])]


def _put(
    gradients: Sequence[torch.Tensor], rank: int, lefts: Sequence[torch.Tensor], right: torch.Tensor
) -> list[torch.Tensor]:
    """Write the average to the gradients. Returns copies of the right factors, whose memory layout is then always equal."""
    at, whole = _factored(gradients, rank), _whole(gradients, rank)
    shapes: list[Sequence[int]] = [(columns, rank) for _, (_, columns) in at]
    averages = _unflattened(right, [*shapes, *(gradient.shape for gradient in whole)])
    rights = [average.clone() for average in averages[: len(at)]]
    for (index, _), left, average in zip(at, lefts, rights, strict=True):
        gradients[index].copy_((left @ average.T).reshape(gradients[index].shape))
    for gradient, average in zip(whole, averages[len(at) :], strict=True):
        gradient.copy_(average)
    return rights


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)


def _unflattened(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    parts = flat.split([math.prod(shape) for shape in shapes])
    return [part.view(*shape) for part, shape in zip(parts, shapes, strict=True)]
