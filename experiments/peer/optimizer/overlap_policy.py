"""Decides what a peer does after each step while a round runs in the background. Pure.

The peer calculates the next epoch's gradients up to its share of the target batch size minus one step. That last step
waits for the update, so that an epoch does not exceed the target batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Move(Enum):
    """The action after a step."""

    CALCULATE = "calculate"  # another step of the next epoch
    WAIT = "wait"  # until the round is over
    UPDATE = "update"  # the round is over: apply its result


@dataclass
class NextEpochProgress:
    """Samples calculated since the round began. `share`: this peer's share of the target batch size."""

    share: int = 0
    samples: int = 0
    steps: int = 0

    def add(self, samples: int) -> None:
        """Add the samples of one step, whose gradients the next round averages."""
        self.samples += samples
        self.steps += 1

    def move(self, step: int, over: bool, newcomers: bool) -> Move:
        """Decide the next action. `step`: samples per step; `over`: whether the round is over.

        With `newcomers` no peer calculates ahead: they need the calculation time between two rounds to download the last
        update.
        """
        if over:
            return Move.UPDATE
        return Move.CALCULATE if self.samples + step < self.share and not newcomers else Move.WAIT

    @property
    def left(self) -> int:
        """Samples of this peer's share that have not been calculated yet."""
        return max(0, self.share - self.samples)
