"""A run as an experiment tracker keeps it: parameters, series over epochs, and final figures. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from metrics import tables
from metrics.figures import FIGURES, RUN_AGAINST_RUN
from metrics.run import Records, RunNumbers
from metrics.store.meta import RunMeta

Parameter = str | float | bool

_EPOCH = {
    "loss": "training/loss",
    "samples": "training/samples",
    "peers": "training/peers",
    "sps": "training/samples_per_s",
    "granularity": "training/granularity",
    "calc_s": "training/calculation_s",
    "comm_s": "training/communication_s",
}
"""Names of the series by column of `metrics.tables.per_epoch`."""
COST = "cost/usd"
FINAL = "final/"
EMULATED = "orch.emulated"
RUNNING = "running"
_HELD_OUT = "held_out/"


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one epoch, at full scale. What is unknown is left out."""

    epoch: int
    at_s: float  # unix: when the epoch ended, or when it was evaluated
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One run."""

    run_id: str
    experiment: str
    started_s: float  # unix
    ended_s: float  # unix; of a run in progress: its last point
    status: str
    emulated: bool | None  # None: unknown
    # The experiment's settings, "swarm.target_batch_size", and what orch knows of the run, "orch.run_id".
    parameters: Mapping[str, Parameter]
    points: tuple[Point, ...]
    final: Mapping[str, float]  # figures of the whole run, by key of `metrics.figures`, and held-out ones

    @property
    def last_epoch(self) -> int:
        """The newest epoch with a point; 0 without any."""
        return max((point.epoch for point in self.points), default=0)


def settled(run: TrackedRun) -> TrackedRun:
    """Return a run without what may still change: of one in progress, its newest epoch and its final figures.

    Records of an epoch arrive from each peer on its own, and all of them before the next epoch has ended.
    """
    if run.status != RUNNING:
        return run
    known = tuple(point for point in run.points if point.epoch < run.last_epoch)
    ended_s = max((point.at_s for point in known), default=run.started_s)
    return replace(run, points=known, final={}, ended_s=ended_s)


def tracked_run(store: Records) -> TrackedRun:
    """Read a run. Raises metrics.store.database.StoreError."""
    run = RunNumbers.of(store)
    epochs = tables.per_epoch(run)
    spent = {row["epoch"]: run.spending.until(row["ended_s"]).sum() for row in epochs}
    points = [
        Point(
            row["epoch"],
            row["ended_s"],
            {name: float(row[key]) for key, name in _EPOCH.items() if row[key] is not None}
            | _known(COST, spent[row["epoch"]]),
        )
        for row in epochs
    ]
    ends = {row["epoch"]: row["ended_s"] for row in epochs}
    evaluated = tables.evaluations(run)
    for row in evaluated:
        at_s = row["at_s"] if row["at_s"] is not None else ends.get(row["epoch"], 0.0)
        values = {f"{_HELD_OUT}{name}": value for name, value in row["figures"].items()}
        points.append(Point(row["epoch"], at_s, values))
    meta = run.meta
    last_s = max((point.at_s for point in points), default=0.0)
    figures = {key: FIGURES[key].value(run) for key in RUN_AGAINST_RUN if key != "accuracy"}
    held_out = evaluated[-1]["figures"] if evaluated else {}
    return TrackedRun(
        run_id=str(meta.run_id),
        experiment=str(meta.document.get("name") or meta.label or meta.run_id),
        started_s=meta.started_s or min((point.at_s for point in points), default=0.0),
        ended_s=meta.ended_s or last_s,
        status=str(meta.status),
        emulated=meta.emulated,
        parameters=dict(_flat(meta.document)) | dict(_flat(_facts(meta))),
        points=tuple(points),
        final={key: float(value) for key, value in figures.items() if value is not None}
        | {f"{_HELD_OUT}{name}": value for name, value in held_out.items()},
    )


def _facts(meta: RunMeta) -> dict[str, Any]:
    """What identifies a run besides its settings, and what was emulated. What is unknown is left out."""
    scales = meta.scales
    return {
        "orch.run_id": meta.run_id,
        "orch.target": meta.target,
        EMULATED: meta.emulated,
        "orch.scales": None if scales is None else {k: float(getattr(scales, k)) for k in scales.key_names()},
        "orch.model_sha256": meta.model and meta.model.sha256,
        "orch.price_book": meta.price_book and meta.price_book.name,
        "orch.price_book_sha256": meta.price_book and meta.price_book.sha256,
        "orch.versions": meta.versions,
    }


def _known(name: str, value: Decimal | None) -> dict[str, float]:
    return {} if value is None else {name: float(value)}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Parameter]]:
    """Settings by dotted name. A list of settings is numbered, another one is JSON; null is left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for n, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{n}")
    elif isinstance(value, bool | str):
        yield name, value
    elif isinstance(value, int | float):
        yield name, float(value)
    elif value is not None:
        yield name, json.dumps(value)
