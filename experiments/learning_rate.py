"""The learning rate of each optimizer step as a function of the hivemind epoch that the step ends (`swarm.schedule`).

A peer that joins, falls behind or starts again knows the epoch of its weights, and so the rate of the next step: no
counter has to be kept, sent or restored. Imports the standard library only, since schema and peer share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Decay = Callable[["RateSchedule", int], float]


class RateScheduleError(ValueError):
    """The settings are not those of a schedule."""


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Factors of the learning rate by epoch, counted from 1."""

    kind: str
    epochs: int  # of the whole run
    warmup_epochs: int = 0
    final: float = 0.0  # what linear and cosine fall towards, as a fraction of the learning rate

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RateSchedule:
        """Make one from the settings in a peer's config. Raises RateScheduleError."""
        try:
            made = cls(**settings)
        except TypeError as error:
            raise RateScheduleError(f"found {dict(settings)}: {error}") from error
        if made.kind not in KINDS:
            raise RateScheduleError(f"kind {made.kind!r} is not one of {', '.join(KINDS)}")
        return made

    def factor(self, epoch: int) -> float:
        """The factor of the step that ends this epoch.

        During the warm-up it rises in equal parts, from 1 / warmup_epochs to 1 (Goyal et al., "Accurate, Large Minibatch
        SGD", 2017, section 2.2, by epochs). It is never 0, since that step would be lost.
        """
        if epoch <= self.warmup_epochs:
            return epoch / self.warmup_epochs
        return KINDS[self.kind].decay(self, epoch)

    def passed(self, epoch: int) -> float:
        """The share, from 0 to 1, of the epochs after the warm-up that precede this one."""
        before, after = epoch - 1 - self.warmup_epochs, self.epochs - self.warmup_epochs
        return min(1.0, before / max(1, after))


def _constant(schedule: RateSchedule, epoch: int) -> float:
    return 1.0


def _linear(schedule: RateSchedule, epoch: int) -> float:
    """`get_linear_schedule_with_warmup` of transformers, towards `final` instead of 0."""
    return 1.0 - (1.0 - schedule.final) * schedule.passed(epoch)


def _cosine(schedule: RateSchedule, epoch: int) -> float:
    """Loshchilov and Hutter, "SGDR", 2017, equation 5, without restarts; `CosineAnnealingLR` of torch."""
    return schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + math.cos(math.pi * schedule.passed(epoch)))


def _inverse_sqrt(schedule: RateSchedule, epoch: int) -> float:
    """Vaswani et al., "Attention Is All You Need", 2017, equation 3, divided by its largest value."""
    return math.sqrt(max(1, schedule.warmup_epochs) / epoch)


@dataclass(frozen=True, slots=True)
class Kind:
    """One value of `swarm.schedule.kind`."""

    meaning: str
    decay: Decay  # after the warm-up
    has_final: bool = field(default=False, kw_only=True)


KINDS: dict[str, Kind] = {
    "constant": Kind("the rate stays", _constant),
    "linear": Kind("it falls evenly towards `final`", _linear, has_final=True),
    "cosine": Kind("it falls towards `final` along half a cosine", _cosine, has_final=True),
    "inverse_sqrt": Kind("it falls with the square root of the epoch", _inverse_sqrt),
}
CONSTANT = RateSchedule("constant", epochs=1)
