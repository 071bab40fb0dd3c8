"""The training task: the emulated small network, or a model of the paper on this VM's accelerator."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.training.batches import Batch
from experiments.peer.training.emulated_model import DIGITS, build_emulated
from experiments.tasks.errors import TaskError
from experiments.tasks.models import VISION, build_model

_IMAGE_SIDE = 224
_EVALUATION_SAMPLES = 64  # per batch


class Task:
    """A network with its loss on a device; batches are digits (`batches.Batch`)."""

    def __init__(self, network: nn.Module, device: torch.device, ran: str, image_side: int | None) -> None:
        self.network = network.to(device)
        self.device, self.ran = device, ran
        self._image_side = image_side

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that are trained and averaged."""
        return (parameter for parameter in self.network.parameters() if parameter.requires_grad)

    def move(self, batch: Batch) -> Batch:
        """Move the batch to the device."""
        pixels, labels = batch
        moved = pixels.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        self.wait()
        return moved

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy over the batch, a scalar."""
        return functional.cross_entropy(self._logits(batch[0]), batch[1])

    def wait(self) -> None:
        """Wait for the accelerator, so that queued work is timed in the phase that issued it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, float]:
        """Return (accuracy from 0 to 1, mean loss) over all samples of the batch."""
        pixels, labels = batch
        self.network.eval()
        right, loss = 0, 0.0
        for start in range(0, len(labels), _EVALUATION_SAMPLES):
            part = self.move((pixels[start:][:_EVALUATION_SAMPLES], labels[start:][:_EVALUATION_SAMPLES]))
            logits = self._logits(part[0])
            right += int((logits.argmax(dim=1) == part[1]).sum())
            loss += float(functional.cross_entropy(logits, part[1], reduction="sum"))
        self.network.train()
        return right / len(labels), loss / len(labels)

    def _logits(self, pixels: torch.Tensor) -> torch.Tensor:
        if self._image_side is None:
            return self.network(pixels)
        images = pixels.view(-1, 1, 8, 8).expand(-1, 3, -1, -1)
        side = (self._image_side, self._image_side)
        output = self.network(functional.interpolate(images, side, mode="bilinear"))
        return getattr(output, "logits", output)


def build_task(config: PeerConfig) -> Task:
    """Build the config's task. Raises PeerConfigError if it cannot run, ModelSizeError if `parameters` is too small."""
    if config.emulated:
        ran = "digits" if config.model in DIGITS else f"digits (emulates {config.model})"
        made = build_emulated(config.parameters, config.seed, config.matrices)
        return Task(made, torch.device("cpu"), ran, None)
    if config.model in DIGITS:
        small = build_emulated(config.parameters, config.seed)
        return Task(small, torch.device("cpu"), "digits", None)
    try:
        network = build_model(config.model, config.seed)
    except TaskError as error:
        raise PeerConfigError(str(error)) from error
    if config.model not in VISION:
        raise PeerConfigError(
            f"model: {config.model} needs text or speech, but the shards of this version hold images; "
            f"use one of {', '.join(VISION)}, or emulate it"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Task(network, device, config.model, _IMAGE_SIDE)
