"""Tensor shapes of the models, which determine how PowerSGD factors a gradient. Pure."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

Shapes = tuple[tuple[tuple[int, ...], int], ...]
"""(shape, number of parameter tensors with that shape)."""

_FILE = Path(__file__).resolve().parent.parent / "model_shapes.csv"


@cache
def model_shapes() -> dict[str, Shapes]:
    """Return the shapes of all parameters by model. Each row of `model_shapes.csv` names its source."""
    found: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    with _FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shape = tuple(int(side) for side in row["shape"].split("x"))
            found.setdefault(row["model"], []).append((shape, int(row["count"])))
    return {model: tuple(shapes) for model, shapes in found.items()}
