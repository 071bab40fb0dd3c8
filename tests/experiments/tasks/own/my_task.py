"""A task of a user, for tests: logistic regression on the digits, with a helper in a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from my_helper import centred
from torch import nn
from torch.nn import functional

from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.errors import TaskError

FIELDS = {"image": ("png",), "label": ("cls",)}
DECODE = (
    Op("pixels", "experiments.pipeline.builtin.digits:pixels", "image", "bytes", "array"),
    Op("digit", "experiments.pipeline.builtin.label:class_number", "label", "bytes", "number"),
)
PLAIN = Pipeline("plain digits", FIELDS, DECODE)


class Digits:
    """Batches are (float32[n, 64], int64[n])."""

    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.pipeline = Pipeline(
            "centred digits", FIELDS, (*DECODE, Op("centre", "my_helper:centred", "image", "array", "array"))
        )

    def collate(self, items: Sequence[Item]) -> tuple[torch.Tensor, torch.Tensor]:
        """Stack images and labels."""
        images = torch.from_numpy(np.stack([item["image"] for item in items]))
        return images, torch.tensor([item["label"] for item in items])

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Mean cross-entropy."""
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def evaluate(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
        """Mean cross-entropy and accuracy."""
        loss, right, count = 0.0, 0, 0
        for images, labels in batches:
            logits = self.model(images)
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(1) == labels).sum())
            count += len(labels)
        return {"loss": loss / count, "accuracy": right / count}


def build(config: Mapping[str, Any], seed: int) -> Digits:
    """Build it; `width`: neurons of the hidden layer."""
    print("building")  # must not mix with what orch reads
    assert centred(np.ones(2, np.float32)).sum() == 0
    width = config.get("width", 32)
    if not isinstance(width, int):
        raise TaskError(f"width: {width!r} is not a whole number")
    return Digits(width)


def fails(config: Mapping[str, Any], seed: int) -> Digits:
    """Raise an error of the user's own."""
    raise ValueError("no such corpus")
