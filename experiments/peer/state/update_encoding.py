"""Encoding of an update: what a peer that missed a round needs to take the same optimizer step.

It is the averaged gradient or, if the round averaged PowerSGD factors, those factors. It takes as many bytes as one
peer's gradients in a round and is exact, since the averages were received as float16.
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
    """Pack the factors from which the gradients were built; without factors, the gradients in `compression`."""
    if factors is None:
        return pack(about, gradients, _infos(gradients), compression)
    tensors = [factors.left, factors.right]
    return pack({**about, "rank": factors.rank}, tensors, _infos(tensors), Float16Compression())


@torch.no_grad()
def round_for_update(gradients: Sequence[torch.Tensor], compression: CompressionBase) -> None:
    """Round the gradients in place to the values that `pack_update` with `compression` and `load_update` would yield."""
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
    """Load an update, as unpacked by `encoding.unpack`, into the parameters' gradients.

    `rank`: of this swarm's factors, None if it does not average factors. Raises ValueError, without changing a
    gradient, if the update is for other parameters, of another rank or of an invalid type.
    """
    if (sent_rank := about.get("rank")) is not None:
        if type(sent_rank) is not int or sent_rank != rank:
            raise ValueError(f"factors of rank {sent_rank!r}, not {rank}")
        if (kinds := [tensor.dtype for tensor in tensors]) != [torch.float32] * 2:
            raise ValueError(f"factors of {kinds}, not two of {torch.float32}")
        rebuild([_gradient_of(parameter) for parameter in parameters], Factors(sent_rank, *tensors))
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
