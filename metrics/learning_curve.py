"""Held-out figures over samples, time and dollars, and what it took to reach a target. Pure.

A point is an evaluated epoch. Its figures are those of the weights at the epoch's end, so its samples, seconds and dollars
are those until that end, whenever the evaluation itself was done. Values are at full scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from metrics.cost.bill import bill_so_far
from metrics.cost.checkpoints import CheckpointUse
from metrics.cost.ledger import Ledger, Terms
from metrics.epochs.throughput import SwarmEpoch, samples_until
from metrics.events.evaluation import Evaluation, figure_words
from metrics.readable import duration, few, usd
from metrics.records import EgressRecord, EpochRecord, IngressRecord, VmRecord

PRICED_POINTS = 200
"""Of more points, only so many have dollars: each needs a bill of its own."""


@dataclass(frozen=True, slots=True)
class Target:
    """The value of a held-out figure that a run is to reach: `train.until.metric` of the experiment."""

    name: str
    at_most: float | None = None
    at_least: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Target | None:
        """Read an experiment's document. None: it names no target."""
        train: Mapping[str, Any] = document.get("train") or {}
        until: Mapping[str, Any] = train.get("until") or {}
        metric: Mapping[str, Any] | None = until.get("metric")
        if metric is None:
            return None
        return cls(str(metric["name"]), metric.get("at_most"), metric.get("at_least"))

    def reached_by(self, value: float) -> bool:
        """Whether a value of the figure is good enough."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is not None and value >= self.at_least

    def __str__(self) -> str:
        bound, word = (self.at_least, "at least") if self.at_most is None else (self.at_most, "at most")
        return f"{self.name} of {word} {figure_words(self.name, bound)}"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluated epoch."""

    epoch: int
    samples: float | None  # trained on until its end; None: the records of an epoch are missing
    trained_s: float | None  # since training began; None: the epoch has no record
    usd: (
        Decimal | None
    )  # spent until its end, start-up included; None: unknown, or not computed (PRICED_POINTS)
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """The evaluated epochs of a run, ascending."""

    points: tuple[CurvePoint, ...]
    unknown: tuple[str, ...] = ()  # why dollars are unknown, without duplicates

    def reached(self, target: Target | None) -> CurvePoint | None:
        """Return the first point at which a target is reached. None: no target, or it was not reached."""
        if target is None:
            return None
        return next(
            (
                p
                for p in self.points
                if target.name in p.figures and target.reached_by(p.figures[target.name])
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class Spending:
    """The records of a run from which its bill at any time follows."""

    vms: Sequence[VmRecord]
    epochs: Sequence[EpochRecord]  # those before a restart included
    egress: Sequence[EgressRecord]
    ingress: Sequence[IngressRecord]
    terms: Terms
    trained_s: Mapping[str, float]  # by VM: when it was first observed to train, unix s
    last_epoch: int | None
    checkpoints: CheckpointUse | None = None

    def until(self, at_s: float) -> Ledger:
        """Return the bill at a time, unix s, as it would have been shown then with all records of that time."""
        vms = [self._at(row, at_s) for row in self.vms if row.requested_s <= at_s]
        epochs = [row for row in self.epochs if row.ended_s <= at_s]
        ended = {row.vm for row in vms if row.ended_s is not None}
        known = {(row.vm, row.epoch) for row in epochs}
        read: dict[str, int] = {row.vm: 0 for row in vms}
        for row in self.ingress:
            if (row.vm, row.epoch) in known or row.vm in ended:
                read[row.vm] = read.get(row.vm, 0) + row.network_bytes
        egress = [
            row
            for row in self.egress
            if row.vm in ended or ((row.vm, row.epoch) in known and row.phase != "leaving")
        ]
        used = None if self.checkpoints is None else self.checkpoints.until(at_s)
        return bill_so_far(vms, epochs, egress, at_s, self.terms, read, self.last_epoch, self.trained_s, used)

    @staticmethod
    def _at(row: VmRecord, at_s: float) -> VmRecord:
        """The row of a VM as it was at that time."""
        alive = row.ended_s is None or row.ended_s > at_s
        return replace(row, ended_s=None, end_cause="") if alive else row


def target_name(target: Mapping[str, Any]) -> str:
    """Name the target of a summary's `target_reached`: "loss of at most 1.5"."""
    return str(Target(target["name"], target["at_most"], target["at_least"]))


def target_words(target: Mapping[str, Any]) -> str:
    """Say what it took to reach the target of a summary's `target_reached`."""
    name = target_name(target)
    if not target["reached"]:
        return f"The target, {name}, was not reached"
    samples = "an unknown number of" if target["samples"] is None else f"{target['samples']:,.0f}"
    seconds = "an unknown time" if target["time_s"] is None else duration(target["time_s"])
    cost = usd(target["usd"])
    if target["usd"] is None:
        cost = f"dollars unknown ({few(target['usd_unknown']) or 'the epoch has no record'})"
    return (
        f"The target, {name}, was reached after epoch {target['epoch']}: {samples} samples, "
        f"{seconds} of training, {cost}"
    )


def learning_curve(
    evaluations: Iterable[Evaluation],
    raw: Sequence[SwarmEpoch],
    full_scale: Sequence[SwarmEpoch],
    spending: Spending,
    start_epoch: int = 0,
) -> LearningCurve:
    """Compute the curve of a run's evaluations.

    `raw`, `full_scale`: the run's epochs since training last started from scratch. Time and dollars of what was trained
    before are part of the curve's. `start_epoch`: of the checkpoint of another run with which it began.
    """
    points = list(evaluations)
    samples = samples_until(full_scale, start_epoch)
    began_s = min((record.began_s for record in spending.epochs), default=math.nan)
    seconds = seconds_until(raw, full_scale, began_s, spending.terms.scales.time)
    peers = {epoch.epoch: {p.vm for p in epoch.peers} for epoch in raw}
    ends = {
        number: max((r.ended_s for r in spending.epochs if r.epoch == number and r.vm in vms), default=None)
        for number, vms in peers.items()
    }
    priced = {points[k].epoch for k in _spread(len(points), PRICED_POINTS)}
    found: list[CurvePoint] = []
    unknown: list[str] = []
    for one in points:
        at_s, spent = ends.get(one.epoch), None
        if at_s is not None and one.epoch in priced:
            bill = spending.until(at_s)
            spent = bill.sum()
            unknown += bill.unknown
        found.append(
            CurvePoint(one.epoch, samples.get(one.epoch), seconds.get(one.epoch), spent, one.figures)
        )
    return LearningCurve(tuple(found), tuple(dict.fromkeys(unknown)))


def seconds_until(
    raw: Sequence[SwarmEpoch], full_scale: Sequence[SwarmEpoch], began_s: float, time_scale: float
) -> dict[int, float]:
    """Return by epoch the seconds from the training's start to its end, at full scale.

    Epochs count at full scale, what is between them with the time scale alone. `began_s`: the start of the first record.
    """
    grown, found = 0.0, dict[int, float]()
    for before, after in zip(raw, full_scale, strict=True):
        if before.duration_s is not None and after.duration_s is not None:
            grown += after.duration_s - time_scale * before.duration_s
        found[before.epoch] = time_scale * (before.ended_s - began_s) + grown
    return found


def _spread(count: int, most: int) -> set[int]:
    """Return at most `most` indexes of `count`, evenly spread, the last included."""
    if count <= most:
        return set(range(count))
    return {round(k * (count - 1) / (most - 1)) for k in range(most)}
