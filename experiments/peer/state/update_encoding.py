"""An update as bytes: of one round, what a peer that missed it needs to take the same step.

It is the averaged gradient, or where the round averaged factors (PowerSGD) those: as few bytes as one peer's gradients
are on the wire, and exact, since what came over it was float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    TensorRole,
)

from experiments.peer.averaging.powersgd_math import Factors, rebuild
from experiments.peer.state.encoding import Blob, pack


def pack_update(
    about: Mapping[str, Any],
    gradients: Sequence[torch.Tensor],
    factors: Factors | None,
    compression: CompressionBase,
) -> Blob:
    """The factors that the gradients were made of, or where there are none the gradients, in `compression`."""
    if factors is None:
        return pack(about, gradients, _infos(gradients), compression)
    tensors = [factors.left, factors.right]
    return pack({**about, "rank": factors.rank}, tensors, _infos(tensors), Float16Compression())


@torch.no_grad()
def round_for_update(gradients: Sequence[torch.Tensor], compression: CompressionBase) -> None:
    """Make of them, in place, what `pack_update` in `compression` and `load_update` would leave of them."""
    if isinstance(compression, NoCompression):
        return
    for gradient, info in zip(gradients, _infos(gradients), strict=True):
        gradient.copy_(compression.extract(compression.compress(gradient, info)))


def load_update(
    parameters: Sequence[torch.nn.Parameter],
    about: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
    rank: int | None,
) -> None:
    """Put what `pack_update` was given, and `state_bytes.unpack` found, into the parameters' gradients.

    `rank`: of this swarm's factors, if it averages such. Raises ValueError, and changes no gradient, when it is that of
    other parameters or of another rank, or no numbers that a round can have had.
    """
    if (said := about.get("rank")) is not None:
        if type(said) is not int or said != rank:
            raise ValueError(f"factors of rank {said!r}, not {rank}")
        if (kinds := [tensor.dtype for tensor in tensors]) != [torch.float32] * 2:
            raise ValueError(f"factors of {kinds}, not two of {torch.float32}")
        rebuild([_gradient_of(parameter) for parameter in parameters], Factors(said, *tensors))
        return
    if [p.shape for p in parameters] != [tensor.shape for tensor in tensors]:
        raise ValueError("an update of other parameters")
    gradients = [_gradient_of(parameter) for parameter in parameters]
    for gradient, tensor in zip(gradients, tensors, strict=True):
        gradient.copy_(tensor)


def _gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _infos(tensors: Sequence[torch.Tensor]) -> list[CompressionInfo]:
    return [
        CompressionInfo.from_tensor(tensor, key=i, role=TensorRole.GRADIENT)
        for i, tensor in enumerate(tensors)
    ]
