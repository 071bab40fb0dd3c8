"""Compares what a run's plan predicted with what was measured. Pure.

A prediction is made before the run and stored with its plan (`orch plan -o json`, key `prediction`), so a newer predictor
never changes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from metrics.figures import FIGURES
from metrics.readable import number
from metrics.run import RunNumbers

_FIGURE_OF = {
    "sps": "sps",
    "granularity": "granularity_of_means",
    "calc_s": "calc_s",
    "comm_s": "comm_s",
    "epoch_s": "epoch_s",
    "egress_bytes_per_vm_epoch": "egress_bytes_per_vm_epoch",
    "usd_per_1m_samples": "usd_per_1m",
}
"""Keys of a prediction, and the measured figure of the same definition (dollars: VMs and egress)."""


def pairs(run: RunNumbers) -> list[dict[str, Any]]:
    """Return a row for each figure that was predicted; [] if nothing was, as for imported runs.

    Keys: `figure` (metrics.figures), `predicted` (value, low, high: its 90 % interval), `measured` and `error`
    (predicted / measured - 1) and `inside` (whether the interval holds the measured value). None: not measured.
    """
    prediction = _prediction(run)
    found: list[dict[str, Any]] = []
    for key, figure in _FIGURE_OF.items():
        value = _interval(prediction.get(key))
        if value is None:
            continue
        measured = FIGURES[figure].value(run)
        found.append(
            {
                "figure": figure,
                "predicted": value,
                "measured": measured,
                "error": value["value"] / measured - 1 if measured else None,
                "inside": None if measured is None else value["low"] <= measured <= value["high"],
            }
        )
    return found


def words(pair: Mapping[str, Any]) -> dict[str, str]:
    """Format a row of `pairs` for a table, in the unit of its figure."""
    value, error, figure = pair["predicted"], pair["error"], FIGURES[pair["figure"]]

    def shown(of: float | None) -> str:
        return number(None if of is None else of * figure.shown_factor)

    return {
        "figure": figure.words,
        "predicted": shown(value["value"]),
        "90 % interval": f"{shown(value['low'])} to {shown(value['high'])}",
        "measured": shown(pair["measured"]),
        "error": "unknown" if error is None else f"{error:+.1%}",
        "inside": {None: "unknown", True: "yes", False: "no"}[pair["inside"]],
    }


def not_predicted(run: RunNumbers) -> list[str]:
    """Return why the run's plan predicted no samples/s; [] if it did, or if it has no prediction at all."""
    prediction = _prediction(run)
    if prediction.get("sps") is not None:
        return []
    unknown: Any = prediction.get("unknown")
    return [str(why) for why in cast(list[Any], unknown)] if isinstance(unknown, list) else []


def _prediction(run: RunNumbers) -> Mapping[str, Any]:
    """The prediction of the stored plan; {} if it has none, or one of another form."""
    stored: Any = (run.meta.plan or {}).get("prediction")
    return cast(Mapping[str, Any], stored) if isinstance(stored, Mapping) else {}


def _interval(value: Any) -> dict[str, float] | None:
    """A value and its interval; None if it is not stored as three finite numbers."""
    if not isinstance(value, Mapping):
        return None
    found: dict[str, float] = {}
    for name in ("value", "low", "high"):
        one: Any = cast(Mapping[str, Any], value).get(name)
        if not isinstance(one, int | float) or not math.isfinite(one):
            return None
        found[name] = float(one)
    return found
