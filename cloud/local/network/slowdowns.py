"""Slow spells of a path: periods in which a pair of VMs has only a part of its rate. Computed without communication."""

from __future__ import annotations

import random

from cloud.networks import PathModel

# (begins, ends) in seconds since the switch began
Spell = tuple[float, float]


class Spells:
    """The spells of one pair, the same in both directions: exponential intervals between them, exponential lengths.

    They depend only on the seed, the two names and the model, and not on when or how often they are queried.
    `time_scale` c makes them c times as frequent and c times as short.
    """

    def __init__(self, seed: str, names: tuple[str, str], model: PathModel, time_scale: float = 1.0) -> None:
        self._random = random.Random(f"{seed}/{min(names)}/{max(names)}")
        self._rate = model.spell_rate_per_s * time_scale
        self._mean_s = model.spell_mean_s / time_scale
        self._drawn: list[Spell] = []

    def begun(self, at_s: float) -> list[Spell]:
        """The spells that have begun by then, in order."""
        if not (self._rate and self._mean_s):
            return []
        while not self._drawn or self._drawn[-1][0] <= at_s:
            begins_s = self._drawn[-1][1] if self._drawn else 0.0
            begins_s += self._random.expovariate(self._rate)
            self._drawn.append((begins_s, begins_s + self._random.expovariate(1 / self._mean_s)))
        return [spell for spell in self._drawn if spell[0] <= at_s]

    def slow(self, at_s: float) -> bool:
        """Whether a spell is in progress at that time."""
        begun = self.begun(at_s)
        return bool(begun) and at_s < begun[-1][1]
