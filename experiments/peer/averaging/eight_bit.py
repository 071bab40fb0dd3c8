"""8-bit gradient compression in Hivemind's two wire formats, reimplemented since Hivemind's classes do not work here.

Hivemind 1.1.12 calls `int()` on arrays of one value when it reads them, which NumPy 2.4 refuses, and its blockwise
format requires bitsandbytes in every peer (125 MB of disk, 120 MB of memory and 2 s to load in the middle of the first
round). The bytes are the same as those of Hivemind's classes, so both implementations can communicate.
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
    """256 equal levels over 6 standard deviations around the mean; each level decodes to the mean of its values."""

    def quantize(self, tensor: torch.Tensor, allow_inplace: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return (level indices in the tensor's shape, values of the 256 levels). Tensors of equal values are exact."""
        values = tensor.detach().float()
        centred = values - values.mean()
        deviation = centred.norm() / max(1, values.numel() - 1) ** 0.5
        scale = self.RANGE_IN_SIGMAS * deviation / _LEVELS
        levels = centred / scale if scale > 0 else torch.zeros_like(centred)
        indices = (levels.round_() + _LEVELS // 2).clamp_(0, _LEVELS - 1).to(torch.uint8)
        return indices.numpy(), average_buckets(values, indices, _LEVELS).numpy()

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        """Decode the tensor. Raises ValueError for invalid bytes."""
        (size,), levels, indices = _read(serialized_tensor.buffer, 1)
        if size != _LEVELS:
            raise ValueError(f"uniform8bit: {size} levels instead of {_LEVELS}")
        return _shaped(levels[indices], serialized_tensor)


class Blockwise8Bit(BlockwiseQuantization):
    """256 levels with exponents, scaled by the largest value of each block of 4,096, so small values keep precision.

    Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", arXiv 1511.04561; Dettmers et al., "8-bit Optimizers
    via Block-wise Quantization", arXiv 2110.02861.
    """

    def quantize(self, tensor: torch.Tensor, allow_inplace: bool = False) -> Any:
        """Return (level indices in the tensor's shape, (largest value of each block, the 256 levels))."""
        values = tensor.detach().float().flatten()
        blocks = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
        largest = blocks.abs().amax(dim=1)
        scaled = blocks / torch.where(largest > 0, largest, 1.0)[:, None]
        indices = torch.bucketize(scaled, _BORDERS).to(torch.uint8).flatten()[: values.numel()]
        return indices.view(tensor.shape).numpy(), (largest.numpy(), _CODE.numpy())

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        """Decode the tensor. Raises ValueError for invalid bytes."""
        (blocks, size), floats, indices = _read(serialized_tensor.buffer, 2)
        if size != _LEVELS or blocks != -(-len(indices) // BLOCK):
            raise ValueError(f"blockwise8bit: {blocks} blocks and {size} levels for {len(indices)} values")
        scales = floats[:blocks].repeat_interleave(BLOCK)[: len(indices)]
        return _shaped(floats[blocks:][indices] * scales, serialized_tensor)


def _code() -> torch.Tensor:
    """Levels in ascending order: 0, 1, and ±10^-k times the middles of 2^(6-k) equal parts of [0.1, 1], k = 0 to 6."""
    positive: list[float] = []
    for bits in range(7):
        edges = torch.linspace(0.1, 1, 2**bits + 1, dtype=torch.float64)
        positive += (10.0 ** (bits - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
    levels = [0.0, 1.0, *positive, *(-value for value in positive)]
    return torch.tensor(sorted(levels), dtype=torch.float32)


_CODE = _code()
_BORDERS = (_CODE[:-1] + _CODE[1:]) / 2


def _read(buffer: bytes, sizes: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Split into the leading counts, as many float32 values as their sum, and the level indices. Raises ValueError."""
    if len(buffer) < 8 * sizes:
        raise ValueError(f"8-bit gradients of {len(buffer)} bytes")
    counts = [int(count) for count in np.frombuffer(buffer, dtype=np.int64, count=sizes)]
    if min(counts) < 0 or 8 * sizes + 4 * sum(counts) > len(buffer):
        raise ValueError(f"8-bit gradients: {counts} numbers announced in {len(buffer)} bytes")
    floats = np.frombuffer(buffer, dtype=np.float32, offset=8 * sizes, count=sum(counts))
    indices = np.frombuffer(buffer, dtype=np.uint8, offset=8 * sizes + floats.nbytes)
    return counts, torch.tensor(floats), torch.tensor(indices, dtype=torch.int64)


def _shaped(values: torch.Tensor, serialized_tensor: Any) -> torch.Tensor:
    """Restore shape and type. Raises ValueError if the number of values does not match the shape."""
    shape = tuple(serialized_tensor.size)
    if values.numel() != math.prod(shape):
        raise ValueError(f"8-bit gradients: {values.numel()} values for shape {shape}")
    found = values.view(shape).to(getattr(torch, serialized_tensor.dtype))
    return found.requires_grad_(serialized_tensor.requires_grad)


def use_eight_bit_formats() -> None:
    """Make this process, and those forked from it later, use these classes for both formats."""
    known = serialization._BASE_COMPRESSION_TYPES
    known["UNIFORM_8BIT"], known["BLOCKWISE_8BIT"] = Uniform8Bit(), Blockwise8Bit()
