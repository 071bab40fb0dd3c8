"""The network that runs on the emulated cloud: a small real network with ballast up to the modelled size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

BALLAST_TENSORS = 16
DIGITS = ("digits", "digits-12m")
"""Models of models.csv that are this network: without and with ballast."""
_PIXELS, _HIDDEN, _CLASSES = 64, 64, 10
OWN_PARAMETERS = _PIXELS * _HIDDEN + _HIDDEN + _HIDDEN * _CLASSES + _CLASSES
"""Parameters of the network without ballast."""


class ModelSizeError(Exception):
    """The requested number of parameters is smaller than that of the network."""


class DigitsNet(nn.Module):
    """64 pixels of a handwritten digit -> 64 -> 10 logits; 4,810 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(_PIXELS, _HIDDEN)
        self.head = nn.Linear(_HIDDEN, _CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 64), float 0..1 -> logits (n, 10)."""
        return self.head(torch.relu(self.hidden(pixels - 0.5)))


def ballast(parameters: int, own: int, matrices: Sequence[tuple[int, int]] = ()) -> nn.ParameterList:
    """Make the parameters that a model of `own` parameters lacks to have `parameters`.

    They consist of the given `matrices` (rows, columns) and of vectors. Their gradients are always zero: Hivemind averages
    gradient buffers, and a compressed zero takes as many bytes as any other number. Raises ModelSizeError.
    """
    rest = parameters - own - sum(math.prod(sides) for sides in matrices)
    if rest < 0:
        raise ModelSizeError(
            f"parameters: {parameters} after bytes_scale, but the network itself has {own}"
            f"{' in addition to the requested matrices' if matrices else ''}; lower emulation.bytes_scale"
        )
    share, extra = divmod(rest, BALLAST_TENSORS)
    sizes = [share + (i < extra) for i in range(BALLAST_TENSORS)]
    shapes = [*matrices, *((size,) for size in sizes if size)]
    made = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)
    for tensor in made:
        tensor.grad = torch.zeros_like(tensor)
    return made


class Emulated(nn.Module):
    """A `DigitsNet` with ballast: parameters that are averaged like all others but never used.

    See `ballast`.
    """

    def __init__(self, parameters: int, matrices: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.net = DigitsNet()
        self.ballast = ballast(parameters, sum(p.numel() for p in self.net.parameters()), matrices)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, 64) -> logits (n, 10); the ballast is not used."""
        return self.net(pixels)


def build_emulated(parameters: int, seed: int, matrices: Sequence[tuple[int, int]] = ()) -> Emulated:
    """Build the emulated model with `parameters` in total. The same seed gives identical replicas on all peers."""
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        return Emulated(parameters, matrices)
    finally:
        torch.random.set_rng_state(generator_state)
