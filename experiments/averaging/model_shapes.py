"""The tensors that the models have: what PowerSGD makes of a gradient depends on its shape. Pure."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

Shapes = tuple[tuple[tuple[int, ...], int], ...]
"""(shape, how many parameters have it)."""

_FILE = Path(__file__).resolve().parent.parent / "model_shapes.csv"


@cache
def model_shapes() -> dict[str, Shapes]:
    """Shapes of all parameters, by model; each row of `model_shapes.csv` has its source."""
    found: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    with _FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shape = tuple(int(side) for side in row["shape"].split("x"))
            found.setdefault(row["model"], []).append((shape, int(row["count"])))
    return {model: tuple(shapes) for model, shapes in found.items()}
