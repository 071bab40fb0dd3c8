"""What a peer does after each step while its round goes on without it. Pure.

It calculates the next epoch's gradients, its share of the target batch size less one step: that one waits for the update,
so an epoch has no more samples than the target asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Move(Enum):
    """What comes after a step."""

    CALCULATE = "calculate"  # another step ahead
    WAIT = "wait"  # until the round is over
    UPDATE = "update"  # the round is over: take its result over


@dataclass
class Ahead:
    """What was calculated since the round began. `share`: samples of the target batch size that are this peer's."""

    share: int = 0
    samples: int = 0
    steps: int = 0

    def add(self, samples: int) -> None:
        """A step's samples, whose gradients the next round averages."""
        self.samples += samples
        self.steps += 1

    def move(self, step: int, over: bool, newcomers: bool) -> Move:
        """`step`: samples of one; `over`: the round is. With `newcomers` nobody calculates ahead: the calculation between
        two rounds is the time that they have to take the last update over."""
        if over:
            return Move.UPDATE
        return Move.CALCULATE if self.samples + step < self.share and not newcomers else Move.WAIT

    @property
    def left(self) -> int:
        """Samples of this peer's share that are not calculated yet."""
        return max(0, self.share - self.samples)
