"""The factors of the last round, in memory that the averager's process writes and the peer's own reads.

A donor hands them on instead of the average (state/server.py): both processes may come to them at one time, so they are
marked with the lineage that they lead to, and with none while they are written.
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
    """Made before the averager is forked."""

    def __init__(self, shapes: Sequence[Sequence[int]], rank: int) -> None:
        """Of gradients of these shapes."""
        wire = sent([(shape, 1) for shape in shapes], rank)
        self._rank = rank
        self._left = torch.zeros(rank * wire.rows).share_memory_()
        self._right = torch.zeros(rank * wire.columns + wire.whole).share_memory_()
        self._lineage: Any = _FORK.Array("c", _LINEAGE_BYTES)

    def put(self, factors: Factors, lineage: str) -> None:
        """`lineage`: of the weights that they lead to. In the averager's process."""
        self._lineage.value = b""
        self._left.copy_(factors.left)
        self._right.copy_(factors.right)
        self._lineage.value = lineage.encode()

    def get(self, lineage: str) -> Factors | None:
        """A copy of those that lead to weights of that lineage; None: it had another last round. In the peer's process."""
        if not lineage or self._lineage.value != lineage.encode():
            return None
        found = Factors(self._rank, self._left.clone(), self._right.clone())
        return found if self._lineage.value == lineage.encode() else None
