"""When a run ends before the planned epochs: its goals, and the epoch after which all peers can end together. Pure.

The peers learn of their last epoch from the controller's orders. It must lie so far ahead that all of them know it before
they get there, or some would begin another epoch that the others do not take part in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

# Within which orders reach all peers: written, stored by the monitor on the nodes it reaches, and looked up by the others,
# which do so every 16 s (docs/averaging.md).
ORDER_S = 20.0

Goal = Literal["metric", "samples", "time_s", "usd"]


@dataclass(frozen=True, slots=True)
class Goals:
    """The experiment's `train.until`, at full scale. None: no such goal."""

    samples: int | None = None
    time_s: float | None = None  # since the training began
    usd: Decimal | None = None
    metric: str = ""  # name of a held-out figure; "": none
    at_most: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """What was trained until the end of the newest epoch, at full scale unless stated otherwise."""

    now_s: float
    epoch: int
    ended_s: float  # when the epoch ended, by the swarm's clock
    epoch_s: float | None  # how long an epoch takes on this machine's clock; None: unknown
    samples: float
    trained_s: float
    spent_usd: Decimal | None  # None: unknown
    evaluated: tuple[float, ...] = ()  # the values of the metric so far


def reached(goals: Goals, at: Trained) -> Goal | None:
    """Return the goal that is reached. None: none yet. A figure that is not a number reaches nothing."""
    if any(_good(goals, value) for value in at.evaluated):
        return "metric"
    if goals.samples is not None and at.samples >= goals.samples:
        return "samples"
    if goals.time_s is not None and at.trained_s >= goals.time_s:
        return "time_s"
    if goals.usd is not None and at.spent_usd is not None and at.spent_usd >= goals.usd:
        return "usd"
    return None


def last_epoch(at: Trained, epochs: int | None = None, order_s: float = ORDER_S) -> int:
    """Return the first epoch that is expected to end no sooner than orders reach all peers, but at most `epochs`.

    At least the epoch in progress. Of an unknown duration, the one after that.
    """
    if at.epoch_s is None or at.epoch_s <= 0:
        last = at.epoch + 2
    else:
        left_s = max(0.0, at.now_s - at.ended_s) + order_s
        last = at.epoch + max(1, math.ceil(left_s / at.epoch_s))
    return last if epochs is None else min(last, epochs)


def _good(goals: Goals, value: float) -> bool:
    if goals.at_most is not None:
        return value <= goals.at_most
    return goals.at_least is not None and value >= goals.at_least
