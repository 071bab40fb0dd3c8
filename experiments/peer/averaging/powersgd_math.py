"""PowerSGD's arithmetic on one peer: what it sends in a round's two halves, and what it keeps for the next round.

Vogels, Karimireddy, Jaggi, NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2. Each peer adds to its gradient M (rows x
columns) what earlier rounds did not send of its own; M Q is averaged, its columns made orthonormal: P; the average of
M' P is the right factor, and P times it the gradient that all step with. What of M is not in P's columns is kept:
here each peer's own remainder M - P (M' P)', so that it holds nothing of others; the paper's text has it so, its code
(and Hivemind) subtracts the average of all. Both keep the mean of all gradients whole over the rounds.

A round averages sum(w_i M_i) / W: w_i are a peer's samples, W is their sum. A remainder e_i stands for what w_i e_i is of
them, and added as (w_then / w_now) e_i it does so again: W times each round's average, summed up, and w_i e_i of each peer
at the end make up the gradients of all samples, whatever weights the peers have in each round.

No thread, no clock, no network. All is float32 on the CPU, `orthonormal` float64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiments.averaging.powersgd import factored, sent

MOST_TIMES = 4.0  # a remainder counts in a round so often at most: float16 ends at 65504
_NOISE = 1e-3  # of a column: what float16 leaves of one that is the sum of others
_SMALL = 1e-30


@dataclass(frozen=True)
class Factors:
    """A round's two averages as they came over the wire, of which all have made the same gradients (`rebuild`)."""

    rank: int
    left: torch.Tensor  # one dimension: the left factors, not yet orthonormal
    right: torch.Tensor  # one dimension: the right factors, then what is sent whole


@dataclass(frozen=True)
class Kept:
    """What a round leaves for the next one of the same weights; per factored gradient, in their order."""

    lineage: str  # of the weights after it, if it counts
    remainders: tuple[torch.Tensor, ...]  # of this peer: rows x columns
    rights: tuple[torch.Tensor, ...]  # of all: columns x rank, the same bits at each peer
    weight: float  # of this peer in the round that the remainders are left of


class Memory:
    """What the last round left, and the one before it: a peer learns after a round whether it counts.

    It does when the peer comes to its next round with the lineage that the round made. A peer that failed comes with the
    lineage it had, and tries again with what it had then; one that took the others' state comes with another one.
    """

    def __init__(self) -> None:
        self._kept: list[Kept] = []

    @property
    def lineages(self) -> list[str]:
        """Of what is kept, at most two."""
        return [kept.lineage for kept in self._kept]

    def begin(self, lineage: str) -> Kept | None:
        """For a round with weights of that lineage: what is kept for it; all else is dropped."""
        self._kept = [kept for kept in self._kept if kept.lineage == lineage][:1]
        return self._kept[0] if self._kept else None

    def keep(self, kept: Kept) -> None:
        """What a round left that may count."""
        self._kept.append(kept)


class LowRankRound:
    """One attempt at a round: `left`, average it, `right`, average it, `finish`. Until then nothing is changed."""

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
        """`weight`: this peer's in the averages. `warm`: begin with the right factors of `kept`, as all of the group do; else
        with those of seed and epoch.

        Raises ValueError when there are none to begin with.
        """
        if warm and kept is None:
            raise ValueError("the last round's factors are not here")
        self._gradients, self._rank, self._kept, self._weight = gradients, rank, kept, weight
        times = kept.weight / weight if kept is not None and weight > 0 else 0.0
        self._times = min(MOST_TIMES, times)
        self._later = times - self._times  # what is too much for this round stays in the remainder
        self._seed, self._epoch, self._warm = seed, epoch, warm
        self._wanted: list[torch.Tensor] = []
        self._lefts: list[torch.Tensor] = []
        self._rights: list[torch.Tensor] = []

    @torch.no_grad()
    def left(self) -> torch.Tensor:
        """The left factors' values, one after the other: the first half to average."""
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
        return torch.where(last.abs().amax(0) > 0, last, first)  # a column of zeros would stay one for ever

    @torch.no_grad()
    def right(self, left: torch.Tensor) -> torch.Tensor:
        """The right factors' values and the gradients that are sent whole: the second half. `left`: the average."""
        self._lefts = _lefts([sides for _, sides in self._factored()], self._rank, left)
        self._rights = [m.T @ p for m, p in zip(self._wanted, self._lefts, strict=True)]
        whole = [gradient.to(torch.float32) for gradient in _whole(self._gradients, self._rank)]
        return _flat([*self._rights, *whole])

    @torch.no_grad()
    def finish(self, right: torch.Tensor, lineage: str) -> Kept:
        """Put the average into the gradients. `right`: the second half's average; `lineage`: of the weights it leads to."""
        rights = tuple(_put(self._gradients, self._rank, self._lefts, right))
        kept = self._kept
        if self._weight <= 0:  # the averages have nothing of this peer: it still has all that it had
            if kept is not None:
                return Kept(lineage, kept.remainders, rights, kept.weight)
            return Kept(lineage, tuple(wanted.zero_() for wanted in self._wanted), rights, 0.0)
        for wanted, left, own in zip(self._wanted, self._lefts, self._rights, strict=True):
            wanted.addmm_(left, own.T, alpha=-1)
        if kept is None or self._later <= 0:
            return Kept(lineage, tuple(self._wanted), rights, self._weight)
        for wanted, rest in zip(self._wanted, kept.remainders, strict=True):
            wanted.add_(rest, alpha=self._later).mul_(self._weight / kept.weight)
        return Kept(lineage, tuple(self._wanted), rights, kept.weight)  # its limit is the next round's too

    def forget(self) -> None:
        """Let go of what is as large as the model. What `finish` returned keeps its own."""
        self._wanted, self._lefts, self._rights = [], [], []

    def _factored(self) -> list[tuple[int, tuple[int, int]]]:
        return _factored(self._gradients, self._rank)


@torch.no_grad()
def rebuild(gradients: Sequence[torch.Tensor], factors: Factors) -> None:
    """Put into the gradients what the round's peers have put into theirs, by the same code; what is in them does not count.

    Raises ValueError, and changes nothing, when the factors are not those of gradients of these shapes.
    """
    rank = factors.rank
    wire = sent([(tuple(gradient.shape), 1) for gradient in gradients], rank)
    sizes = [(rank * wire.rows,), (rank * wire.columns + wire.whole,)]
    if (given := [tuple(factors.left.shape), tuple(factors.right.shape)]) != sizes:
        raise ValueError(f"factors of {given} values, not {sizes}")
    lefts = _lefts([sides for _, sides in _factored(gradients, rank)], rank, factors.left)
    _put(gradients, rank, lefts, factors.right)


def first_right(seed: int, epoch: int, tensor: int, columns: int, rank: int) -> torch.Tensor:
    """A right factor to begin with (columns x rank), its columns about 1 long: equal at peers that agree on the arguments.

    Uniform numbers, whose bits are the same on every processor; normal ones are not.
    """
    said = hashlib.sha256(f"powersgd/{seed}/{epoch}/{tensor}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(said[:7]))
    made = torch.rand((columns, rank), generator=generator)
    return made.sub_(0.5).mul_(math.sqrt(12 / columns))


def orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the columns; zeros for one that is, but for the wire's rounding, a sum of those before it.

    Such a remainder is noise, in a direction that each processor would round differently. Gram-Schmidt, each column
    twice (Giraud, Langou, Rozloznik 2005: twice is enough). No number stays none. In float64: what processors round
    differently there is far too little to make one keep a column that another drops.
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
    """Each that is sent as factors: where it stands, and its sides."""
    found = [(index, factored(tensor.shape, rank)) for index, tensor in enumerate(tensors)]
    return [(index, sides) for index, sides in found if sides is not None]


def _whole(tensors: Sequence[torch.Tensor], rank: int) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if factored(tensor.shape, rank) is None]


def _lefts(sides: Sequence[tuple[int, int]], rank: int, left: torch.Tensor) -> list[torch.Tensor]:
    """The first half's average as orthonormal factors."""
    return [orthonormal(factor) for factor in _unflattened(left, [(rows, rank) for rows, _ in sides])]


def _put(
    gradients: Sequence[torch.Tensor], rank: int, lefts: Sequence[torch.Tensor], right: torch.Tensor
) -> list[torch.Tensor]:
    """The average into the gradients. Returns the right factors: copies, that they lie alike in memory wherever this runs."""
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
