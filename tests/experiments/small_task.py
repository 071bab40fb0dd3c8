"""A user's task of the tests: logistic regression on digits, with every optional member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.protocol import TaskError


def noisy(pixels: np.ndarray, *, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Add noise."""
    return (pixels + rng.normal(0, scale, pixels.shape)).astype(np.float32)


DECODE = (
    Op("pixels", "experiments.pipeline.builtin.digits:pixels", "image", "bytes", "array"),
    Op("digit", "experiments.pipeline.builtin.label:class_number", "label", "bytes", "number"),
)
FIELDS = {"image": ("png",), "label": ("cls",)}
NOISY = Op("noise", f"{__name__}:noisy", "image", "array", "array", {"scale": 0.1}, random=True)
OTHER = Pipeline("other", FIELDS, DECODE)


class SmallTask:
    """Batches are {"images": float32[n, 64], "labels": int64[n], "more": no tensors}."""

    pipeline = Pipeline("small", FIELDS, (*DECODE, NOISY))
    heldout_pipeline = Pipeline("small held out", FIELDS, DECODE)

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.model = nn.Sequential(nn.Dropout(0.0), nn.Linear(64, 10))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The bias learns more slowly."""
        linear = self.model[1]
        return [{"params": [linear.weight]}, {"params": [linear.bias], "lr": 0.001}]

    def collate(self, items: Sequence[Item]) -> Any:
        """Stack."""
        if self.config.get("fails") == "collate":
            raise RuntimeError("no such batch")
        images = torch.from_numpy(np.stack([item["image"] for item in items]))
        return {
            "images": images,
            "labels": torch.tensor([item["label"] for item in items]),
            "more": [(None,)],
        }

    def loss(self, batch: Any) -> torch.Tensor:
        """Cross-entropy."""
        assert self.model.training
        loss = functional.cross_entropy(self.model(batch["images"]), batch["labels"])
        kinds: dict[str, Any] = {
            "loss": lambda: [][1],
            "memory": lambda: torch.zeros(2**50),
            "number": loss.item,
            "vector": lambda: loss.repeat(3),
            "detached": loss.detach,
            "nan": lambda: loss * float("nan"),
        }
        return kinds.get(self.config.get("fails", ""), lambda: loss)()

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """Share of wrong digits, but no accuracy."""
        assert not self.model.training
        assert not torch.is_grad_enabled()
        wrong, loss, count = 0, 0.0, 0
        for batch in batches:
            logits = self.model(batch["images"])
            wrong += int((logits.argmax(1) != batch["labels"]).sum())
            loss += float(functional.cross_entropy(logits, batch["labels"], reduction="sum"))
            count += len(logits)
        figures = {"loss": loss / count, "wer": wrong / count, "seen": float("nan")}
        return figures | self.config.get("figures", {})


def build(config: Mapping[str, Any], seed: int) -> SmallTask:
    """Build it."""
    if "wrong" in config:
        raise TaskError("with.wrong: this setting does not exist")
    return SmallTask(config)
