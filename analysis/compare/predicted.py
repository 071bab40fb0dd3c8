"""Errors of predictions, over many runs. Pure.

Only what was predicted before a run counts: the prediction is the one that the run's plan stored (`metrics.predicted`). Runs
are grouped by what the predictor calculates from: the kind of places, the averaging method and the model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cloud.prices.classes import continent
from metrics.figures import FIGURES
from metrics.predicted import pairs
from metrics.provenance import origin_mark
from metrics.run import RunNumbers


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of one run, predicted and measured."""

    run_id: str
    experiment: str
    origin: str  # what was measured: `metrics.provenance.origin_mark`
    places: str  # "one place", or the continents
    method: str  # averaging, overlap and compression, where they differ from flat, none and float16
    model: str
    host_contended: bool | None  # the host was too busy: the measurement says little about the prediction
    figure: str  # metrics.figures
    predicted: float
    low: float  # of the 90 % interval
    high: float
    measured: float | None
    error: float | None  # predicted / measured - 1
    inside: bool | None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of one figure over the runs of a group."""

    places: str
    method: str
    model: str
    origin: str
    figure: str
    n: int
    median: float  # of the absolute errors
    worst: float  # the error with the largest absolute value
    bias: float  # mean error
    inside: int  # runs whose interval holds the measured value


def pairs_of(run: RunNumbers) -> list[Pair]:
    """Return a run's pairs; [] if its plan predicted nothing."""
    found = pairs(run)
    if not found:
        return []
    meta = run.meta
    document: Mapping[str, Any] = meta.document
    locations = sorted({row.location for row in run.vms})
    return [
        Pair(
            run_id=str(meta.run_id),
            experiment=str(document.get("name") or meta.run_id),
            origin=origin_mark(meta.target, meta.emulated),
            places=_places(locations),
            method=_method(document.get("swarm") or {}),
            model=str((meta.model and meta.model.name) or "unknown"),
            host_contended=meta.host_contended,
            figure=row["figure"],
            predicted=row["predicted"]["value"],
            low=row["predicted"]["low"],
            high=row["predicted"]["high"],
            measured=row["measured"],
            error=row["error"],
            inside=row["inside"],
        )
        for row in found
    ]


def accuracy(found: Iterable[Pair]) -> list[Accuracy]:
    """Return the errors by group and figure. Left out: pairs without a measurement, and runs whose host was too busy."""
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in found:
        if pair.error is not None and not pair.host_contended:
            key = (pair.places, pair.method, pair.model, pair.origin, pair.figure)
            groups.setdefault(key, []).append(pair)
    rows: list[Accuracy] = []
    for (places, method, model, origin, figure), own in groups.items():
        errors = [pair.error for pair in own if pair.error is not None]
        rows.append(
            Accuracy(
                places,
                method,
                model,
                origin,
                figure,
                n=len(own),
                median=statistics.median(abs(e) for e in errors),
                worst=max(errors, key=abs),
                bias=statistics.fmean(errors),
                inside=sum(pair.inside is True for pair in own),
            )
        )
    return sorted(rows, key=lambda r: (r.places, r.method, r.model, r.origin, list(FIGURES).index(r.figure)))


def accuracy_table(rows: Sequence[Accuracy]) -> list[dict[str, str]]:
    """Return the rows, formatted."""
    return [
        {
            "places": row.places,
            "method": row.method,
            "model": row.model,
            "measured": row.origin,
            "figure": FIGURES[row.figure].name,
            "n": str(row.n),
            "median error": f"{row.median:.1%}",
            "worst": f"{row.worst:+.1%}",
            "bias": f"{row.bias:+.1%}",
            "inside": f"{row.inside} of {row.n}",
        }
        for row in rows
    ]


def accuracy_document(found: Sequence[Pair]) -> dict[str, Any]:
    """Return the pairs and the errors in JSON types."""
    return {"pairs": [asdict(pair) for pair in found], "accuracy": [asdict(row) for row in accuracy(found)]}


def _places(locations: Sequence[str]) -> str:
    if len(locations) <= 1:
        return "one place"
    continents = sorted({continent(place) or "unknown" for place in locations})
    return continents[0] if len(continents) == 1 else "+".join(continents)


def _method(swarm: Mapping[str, Any]) -> str:
    usual = {"averaging": "flat", "overlap": "none", "compression": "float16"}
    other = [f"{key} {swarm[key]}" for key, default in usual.items() if swarm.get(key, default) != default]
    return ", ".join(other) or "flat"
