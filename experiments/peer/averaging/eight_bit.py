"""Gradients in 8 bits on the wire, in Hivemind's two formats: what their own classes can't do here.

Hivemind 1.1.12 reads both by `int()` of an array of one value, which NumPy 2.4 refuses, and its blockwise format wants
bitsandbytes in every peer (125 MB on the disk, 120 MB in memory and 2 s to load in the middle of the first round). The bytes are
those that Hivemind's classes write and read, so a peer with them understands these.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hivemind.compression import BlockwiseQuantization, Uniform8BitQuantization, serialization
from hivemind.compression.quantization import average_buckets

BLOCK = 4096
"""Values that share one scale in the blockwise format."""
_LEVELS = 256


class Uniform8Bit(Uniform8BitQuantization):
    """256 levels of one width over 6 standard deviations around the mean; a level is read as the mean of its values."""

    def quantize(self, tensor: torch.Tensor, allow_inplace: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(levels, of the tensor's shape; values of the 256 levels). Equal values, zeros too, stay what they are."""
        values = tensor.detach().float()
        centred = values - values.mean()
        deviation = centred.norm() / max(1, values.numel() - 1) ** 0.5
        scale = self.RANGE_IN_SIGMAS * deviation / _LEVELS
        levels = centred / scale if scale > 0 else torch.zeros_like(centred)
        indices = (levels.round_() + _LEVELS // 2).clamp_(0, _LEVELS - 1).to(torch.uint8)
        return indices.numpy(), average_buckets(values, indices, _LEVELS).numpy()

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        """The tensor. Raises ValueError when the bytes are not this format's."""
        (size,), levels, indices = _read(serialized_tensor.buffer, 1)
        if size != _LEVELS:
            raise ValueError(f"uniform8bit: {size} levels instead of {_LEVELS}")
        return _shaped(levels[indices], serialized_tensor)


class Blockwise8Bit(BlockwiseQuantization):
    """256 levels with exponents, scaled by the largest value of each block of 4,096: small values keep their digits.

    Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", arXiv 1511.04561; Dettmers et al., "8-bit Optimizers
    via Block-wise Quantization", arXiv 2110.02861.
    """

    def quantize(self, tensor: torch.Tensor, allow_inplace: bool = False) -> Any:
        """(levels, of the tensor's shape; (largest value of each block, the 256 levels))."""
        values = tensor.detach().float().flatten()
        blocks = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
        largest = blocks.abs().amax(dim=1)
        scaled = blocks / torch.where(largest > 0, largest, 1.0)[:, None]
        indices = torch.bucketize(scaled, _BORDERS).to(torch.uint8).flatten()[: values.numel()]
        return indices.view(tensor.shape).numpy(), (largest.numpy(), _CODE.numpy())

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        """The tensor. Raises ValueError when the bytes are not this format's."""
        (blocks, size), floats, indices = _read(serialized_tensor.buffer, 2)
        if size != _LEVELS or blocks != -(-len(indices) // BLOCK):
            raise ValueError(f"blockwise8bit: {blocks} blocks and {size} levels for {len(indices)} values")
        scales = floats[:blocks].repeat_interleave(BLOCK)[: len(indices)]
        return _shaped(floats[blocks:][indices] * scales, serialized_tensor)


def _code() -> torch.Tensor:
    """0, 1, and both signs of 10^-k times the middles of 2^(6-k) equal parts of 0.1 to 1, k = 0 to 6; ascending."""
    positive: list[float] = []
    for bits in range(7):
        edges = torch.linspace(0.1, 1, 2**bits + 1, dtype=torch.float64)
        positive += (10.0 ** (bits - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
    levels = [0.0, 1.0, *positive, *(-value for value in positive)]
    return torch.tensor(sorted(levels), dtype=torch.float32)


_CODE = _code()
_BORDERS = (_CODE[:-1] + _CODE[1:]) / 2


def _read(buffer: bytes, sizes: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """The counts that lead the bytes, as many float32 as they sum up to, and the levels' indices. Raises ValueError."""
    if len(buffer) < 8 * sizes:
        raise ValueError(f"8-bit gradients of {len(buffer)} bytes")
    counts = [int(count) for count in np.frombuffer(buffer, dtype=np.int64, count=sizes)]
    if min(counts) < 0 or 8 * sizes + 4 * sum(counts) > len(buffer):
        raise ValueError(f"8-bit gradients: {counts} numbers announced in {len(buffer)} bytes")
    floats = np.frombuffer(buffer, dtype=np.float32, offset=8 * sizes, count=sum(counts))
    indices = np.frombuffer(buffer, dtype=np.uint8, offset=8 * sizes + floats.nbytes)
    return counts, torch.tensor(floats), torch.tensor(indices, dtype=torch.int64)


def _shaped(values: torch.Tensor, serialized_tensor: Any) -> torch.Tensor:
    """Raises ValueError where there are not as many values as the shape wants."""
    shape = tuple(serialized_tensor.size)
    if values.numel() != math.prod(shape):
        raise ValueError(f"8-bit gradients: {values.numel()} values for shape {shape}")
    found = values.view(shape).to(getattr(torch, serialized_tensor.dtype))
    return found.requires_grad_(serialized_tensor.requires_grad)


def use_eight_bit_formats() -> None:
    """Let this process, and those it forks from now on, read and write both by these classes."""
    known = serialization._BASE_COMPRESSION_TYPES
    known["UNIFORM_8BIT"], known["BLOCKWISE_8BIT"] = Uniform8Bit(), Blockwise8Bit()
