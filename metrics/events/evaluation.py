"""Accuracy and loss of a run on held-out samples, after the last evaluated epoch. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Means over the peers that evaluated after `epoch`, when the peers of a swarm have the same weights."""

    epoch: int
    accuracy: float  # 0 to 1
    loss: float | None  # None: not a number
    samples: int | None  # held-out samples; None: the number differs between peers


def heldout_given(document: Mapping[str, Any]) -> bool | None:
    """Whether an experiment's document names held-out data; None if it has nothing about data (imported, old runs)."""
    data: Mapping[str, Any] | None = document.get("data")
    if "data" not in document:
        return None
    return bool(data and data.get("heldout"))


def accuracy_words(accuracy: float | None, given: bool | None) -> str:
    """Format an accuracy as a percentage; without one, `no held-out data given` or `unknown`."""
    if accuracy is None:
        return "no held-out data given" if given is False else "unknown"
    return f"{accuracy:.1%}"


def held_out(evaluations: Iterable[Mapping[str, Any]] | None) -> HeldOut | None:
    """Compute the result from meta's `evaluations`. None without any."""
    known = [e for e in evaluations or [] if e.get("accuracy") is not None]
    if not known:
        return None
    last = max(int(e["epoch"]) for e in known)
    rows = [e for e in known if int(e["epoch"]) == last]
    losses = [float(e["loss"]) for e in rows if e.get("loss") is not None]
    counts = {int(e["samples"]) for e in rows if e.get("samples") is not None}
    return HeldOut(
        epoch=last,
        accuracy=math.fsum(float(e["accuracy"]) for e in rows) / len(rows),
        loss=math.fsum(losses) / len(losses) if len(losses) == len(rows) else None,
        samples=counts.pop() if len(counts) == 1 else None,
    )
