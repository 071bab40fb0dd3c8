"""A run as an experiment tracker keeps it: parameters, series over epochs, and final figures. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from metrics import tables
from metrics.figures import FIGURES, RUN_AGAINST_RUN
from metrics.run import Records, RunNumbers

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
    parameters: Mapping[str, Parameter]  # the experiment's settings, "swarm.target_batch_size"
    points: tuple[Point, ...]
    final: Mapping[str, float]  # figures of the whole run, by key of `metrics.figures`, and held-out ones


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
        parameters=dict(_flat(meta.document)),
        points=tuple(points),
        final={key: float(value) for key, value in figures.items() if value is not None}
        | {f"{_HELD_OUT}{name}": value for name, value in held_out.items()},
    )


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
