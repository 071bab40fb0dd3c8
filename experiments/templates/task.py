"""A task: a model, its loss, its evaluation, and the pipeline of its samples (docs/tasks.md).

This one recognises handwritten digits, 8 x 8 pixels. A sample of the shards has two members: `png`, the image, and `cls`,
its digit as text. For your own data, change the pipeline, then the model, then `collate`, `loss` and `evaluate`.
`orch try` tests each change in seconds.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.errors import TaskError

SIDE, CLASSES = 8, 10
Batch = tuple[torch.Tensor, torch.Tensor]  # images, float32 (n, 64); labels, int64 (n,)


# The pipeline's functions: from the bytes of a member to what `collate` needs. No tensors here. An exception ends the run
# with the name of the sample, or leaves the sample out (data.bad_samples).
def pixels(data: bytes) -> np.ndarray:
    """Decode an image to float32 (64,), from -0.5 to 0.5."""
    image = Image.open(io.BytesIO(data)).convert("L").resize((SIDE, SIDE))
    return np.asarray(image, np.float32).reshape(-1) / 255 - 0.5


def digit(data: bytes) -> int:
    """Read the label."""
    return int(data)


def add_noise(image: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """Add normal noise. Randomness comes from `rng` only, so that every run makes the same items."""
    return image + rng.normal(0, scale, image.shape).astype(np.float32)


def pipeline(noise: float) -> Pipeline:
    """Declare the operations: name, function ("module:function"), field, and the kinds that it takes and gives."""
    ops = [
        Op("pixels", "task:pixels", "image", "bytes", "array"),
        Op("digit", "task:digit", "label", "bytes", "number"),
    ]
    if noise:
        ops.append(Op("noise", "task:add_noise", "image", "array", "array", {"scale": noise}, random=True))
    # Field: extensions of the members that may hold it, the first that a sample has.
    fields = {"image": ("png", "jpg"), "label": ("cls",)}
    return Pipeline("digits with noise", fields, tuple(ops))


class DigitsTask:
    """What a peer trains."""

    def __init__(self, width: int, noise: float) -> None:
        self.model = nn.Sequential(nn.Linear(SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, CLASSES))
        self.pipeline = pipeline(noise)
        self.heldout_pipeline = pipeline(0)

    def collate(self, items: Sequence[Item]) -> Batch:
        """Make a batch, on the CPU, of what the pipeline gives."""
        images = torch.from_numpy(np.stack([item["image"] for item in items]))
        return images, torch.tensor([item["label"] for item in items])

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean loss of a batch; the peer calls backward() on it."""
        images, labels = batch
        return functional.cross_entropy(self.model(images), labels)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Figures over all held-out samples; `loss` must be one of them."""
        loss, right, count = 0.0, 0, 0
        for images, labels in batches:
            logits = self.model(images)
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(dim=1) == labels).sum())
            count += len(labels)
        return {"loss": loss / count, "accuracy": right / count}


def build(config: Mapping[str, Any], seed: int) -> DigitsTask:
    """Build the task. `config`: the settings under `with`. torch is seeded, so all peers get the same weights."""
    unknown = set(config) - {"width", "noise"}
    if unknown:
        raise TaskError(f"{min(unknown)!r} is not a setting; use width, noise")
    return DigitsTask(config.get("width", 32), config.get("noise", 0.05))
