"""A run's figures on held-out samples: by evaluated epoch, the last and the best ones. Pure.

The figures are those that the task's `evaluate` returns by name (docs/tasks.md). A row of meta's `evaluations` has
`loss` and `accuracy` as keys and the others in `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.epochs.throughput import SwarmEpoch
from metrics.readable import number

LOWER_IS_BETTER: Mapping[str, bool] = {
    "loss": True,
    "accuracy": False,
    "perplexity": True,
    "wer": True,
    "nats_per_byte": True,
}
"""Names with a known meaning. Of any other figure it is unknown which value is better."""


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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures after one epoch: means over the peers that evaluated it, which have the same weights.

    A figure that some of them lack, or that is not finite, is left out.
    """

    epoch: int
    at_s: float | None  # unix, when the last of them evaluated
    peers: int
    samples: int | None  # held-out samples; None: the number differs between peers
    figures: Mapping[str, float]  # by name: loss, accuracy, then the task's others


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a figure, and the first epoch after which it was reached."""

    value: float
    epoch: int


def evaluations_of(rows: Iterable[Mapping[str, Any]] | None) -> list[Evaluation]:
    """Return the evaluations of meta's `evaluations` by ascending epoch, without figures if none was finite."""
    by_epoch: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in rows or ():
        by_epoch.setdefault(int(row["epoch"]), {})[str(row.get("vm"))] = row
    return [_evaluation(epoch, list(of.values())) for epoch, of in sorted(by_epoch.items())]


def since_restart(rows: Iterable[Mapping[str, Any]], epochs: Sequence[SwarmEpoch]) -> list[Mapping[str, Any]]:
    """Return the rows of meta's `evaluations` of the weights of `epochs`, those since training last started from scratch.

    A row is of other weights if it is older than the epochs, or than the epoch of its number while its VM has no record
    of that epoch: the epoch was trained again.
    """
    if not epochs:
        return []
    began_s = epochs[0].ended_s - (epochs[0].duration_s or 0.0)
    by_number = {epoch.epoch: epoch for epoch in epochs}

    def counts(row: Mapping[str, Any]) -> bool:
        epoch, at_s = by_number.get(int(row["epoch"])), row.get("at_s")
        if at_s is None:
            return True
        if epoch is None:
            return float(at_s) >= began_s
        return float(at_s) >= epoch.ended_s or any(p.vm == row.get("vm") for p in epoch.peers)

    return [row for row in rows if counts(row)]


def best_of(evaluations: Sequence[Evaluation], name: str) -> Best | None:
    """Return the best value of a figure. None without a value, or if it is unknown which value is better."""
    lower = LOWER_IS_BETTER.get(name)
    known = [Best(e.figures[name], e.epoch) for e in evaluations if name in e.figures]
    if lower is None or not known:
        return None
    return (min if lower else max)(known, key=lambda one: one.value)


def names_of(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return the names of all figures, in the order in which they are shown."""
    return list(dict.fromkeys(name for e in evaluations for name in e.figures))


def figure_words(name: str, value: float | None) -> str:
    """Format a figure: an accuracy as a percentage, any other number with four digits."""
    if value is None:
        return "unknown"
    return accuracy_words(value, None) if name == "accuracy" else number(value)


def evaluation_words(figures: Mapping[str, float]) -> str:
    """Format the figures of an evaluation: "loss 1.52, nats_per_byte 1.48"."""
    return ", ".join(f"{name} {figure_words(name, value)}" for name, value in figures.items())


def _evaluation(epoch: int, rows: Sequence[Mapping[str, Any]]) -> Evaluation:
    rows = [row for row in rows if _figures(row)] or rows
    found = [_figures(row) for row in rows]
    names = [name for name in found[0] if all(name in one for one in found)]
    times = [float(row["at_s"]) for row in rows if row.get("at_s") is not None]
    counts = {row.get("samples") for row in rows}
    count = counts.pop() if len(counts) == 1 else None
    return Evaluation(
        epoch=epoch,
        at_s=max(times, default=None),
        peers=len(rows),
        samples=None if count is None else int(count),
        figures={name: math.fsum(one[name] for one in found) / len(found) for name in names},
    )


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite figures of a row, loss and accuracy first."""
    values: dict[str, Any] = {
        "loss": row.get("loss"),
        "accuracy": row.get("accuracy"),
        **(row.get("metrics") or {}),
    }
    return {
        name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)
    }
