"""Constants of the predictor: the rows of predictor_constants.csv. Pure."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Constant:
    """One row of predictor_constants.csv."""

    value: float
    unit: str
    source: str
    how: str


@cache
def constants() -> Mapping[str, Constant]:
    """Return the rows of predictor_constants.csv by name."""
    text = (files("analysis.planning") / "predictor_constants.csv").read_text(encoding="utf-8")
    return {
        r["name"]: Constant(float(r["value"]), r["unit"], r["source"], r["how"])
        for r in csv.DictReader(text.splitlines())
    }
