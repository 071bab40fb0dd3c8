"""The network that runs on the emulated cloud: small and real, with ballast to the modelled size."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["BALLAST_TENSORS", "DIGITS", "DigitsNet", "Emulated", "ModelSizeError", "build_emulated"]

BALLAST_TENSORS = 16
DIGITS = ("digits", "digits-12m")
"""Models of models.csv that are this network: as it is, and with ballast."""
_PIXELS, _HIDDEN, _CLASSES = 64, 64, 10


class ModelSizeError(Exception):
    """The parameters asked for do not hold even the small network."""


class DigitsNet(nn.Module):
    """64 pixels of a handwritten digit -> 64 -> 10 logits; 4,810 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(_PIXELS, _HIDDEN)
        self.head = nn.Linear(_HIDDEN, _CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 64), float 0..1 -> logits (n, 10)."""
        return self.head(torch.relu(self.hidden(pixels - 0.5)))


class Emulated(nn.Module):
    """A `DigitsNet` and ballast: parameters that are averaged as any others, but never used.

    The ballast's gradients are zeros from the start: Hivemind averages gradient buffers, and a
    compressed zero is as long as any other number.
    """

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.net = DigitsNet()
        small = sum(p.numel() for p in self.net.parameters())
        if parameters < small:
            raise ModelSizeError(
                f"parameters: {parameters} after bytes_scale, but the network that runs has {small}; "
                f"lower emulation.bytes_scale"
            )
        rest = parameters - small
        share, extra = divmod(rest, BALLAST_TENSORS)
        sizes = [share + (i < extra) for i in range(BALLAST_TENSORS)]
        self.ballast = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes if size)
        for tensor in self.ballast:
            tensor.grad = torch.zeros_like(tensor)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 64) -> logits (n, 10); the ballast takes no part."""
        return self.net(pixels)


def build_emulated(parameters: int, seed: int) -> Emulated:
    """The emulated model with `parameters` in all. Equal seeds give equal replicas: peers start alike."""
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        return Emulated(parameters)
    finally:
        torch.random.set_rng_state(generator_state)
