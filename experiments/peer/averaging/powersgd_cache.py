"""Factors of the last round, in shared memory written by the averager's process and read by the peer's.

A donor serves them instead of the average (state/server.py). Both processes may access them at the same time, so they
are marked with the lineage of the weights they lead to, and with an empty one while they are written.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch

from experiments.averaging.powersgd import sent
from experiments.peer.averaging.powersgd_math import Factors

_FORK = multiprocessing.get_context("fork")
_LINEAGE_BYTES = 32


class LastFactors:
    """The last round's factors. Create it before the averager's process is forked."""

    def __init__(self, shapes: Sequence[Sequence[int]], rank: int) -> None:
        """`shapes`: of the gradients."""
        wire = sent([(shape, 1) for shape in shapes], rank)
        self._rank = rank
        self._left = torch.zeros(rank * wire.rows).share_memory_()
        self._right = torch.zeros(rank * wire.columns + wire.whole).share_memory_()
        self._lineage: Any = _FORK.Array("c", _LINEAGE_BYTES)

    def put(self, factors: Factors, lineage: str) -> None:
        """Store factors with the `lineage` of the weights they lead to. Called in the averager's process."""
        self._lineage.value = b""
        self._left.copy_(factors.left)
        self._right.copy_(factors.right)
        self._lineage.value = lineage.encode()

    def get(self, lineage: str) -> Factors | None:
        """Return a copy of the factors if they lead to weights of that lineage. Called in the peer's process."""
        if not lineage or self._lineage.value != lineage.encode():
            return None
        found = Factors(self._rank, self._left.clone(), self._right.clone())
        return found if self._lineage.value == lineage.encode() else None
