"""The digits as a task: of the small network, and of the paper's vision models on enlarged digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.pipeline.builtin import digits
from experiments.pipeline.pipeline import Item

Batch = tuple[torch.Tensor, torch.Tensor]
"""(float32[n, 64] pixels from 0 to 1, int64[n] digits)."""


class DigitsTask:
    """A classifier of digits.

    `image_side`: the model takes images (n, 3, side, side), to which the digits are enlarged; None: it takes the pixels
    (n, 64).
    """

    pipeline = digits.pipeline()

    def __init__(self, model: nn.Module, image_side: int | None = None) -> None:
        self.model = model
        self._image_side = image_side

    def collate(self, items: Sequence[Item]) -> Batch:
        """Stack pixels and labels."""
        pixels = torch.from_numpy(np.stack([item["image"] for item in items]))
        return pixels, torch.tensor([item["label"] for item in items], dtype=torch.int64)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy over the batch, a scalar."""
        return functional.cross_entropy(self._logits(batch[0]), batch[1])

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Accuracy (0 to 1) and mean cross-entropy over all samples."""
        samples, right, loss = 0, 0, 0.0
        for pixels, labels in batches:
            logits = self._logits(pixels)
            samples += len(labels)
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        return {"accuracy": right / samples, "loss": loss / samples}

    def _logits(self, pixels: torch.Tensor) -> torch.Tensor:
        if self._image_side is None:
            return self.model(pixels)
        images = pixels.view(-1, 1, 8, 8).expand(-1, 3, -1, -1)
        side = (self._image_side, self._image_side)
        output = self.model(functional.interpolate(images, side, mode="bilinear"))
        return getattr(output, "logits", output)
