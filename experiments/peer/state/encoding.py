"""A state as bytes that every peer of one epoch lays out alike, so that a cut download goes on at another donor.

The header names each tensor and where it lies; the body is the tensors one after the other, each as its
compression made it. A tensor begins at a multiple of 8 bytes and chunks are cut there, so no number is ever
put together from two donors' bytes. The donors' numbers differ by what float16 averaging rounds, and no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hivemind.compression import CompressionBase, CompressionInfo, deserialize_torch_tensor
from hivemind.proto import runtime_pb2
from hivemind.utils import MSGPackSerializer

_protobuf: Any = runtime_pb2  # generated: its names are not in its types
ALIGNMENT = 8  # bytes
CHUNK_BYTES = 64 * 1024


class StateBytesError(Exception):
    """What arrived is no state."""


@dataclass(frozen=True)
class Blob:
    """`key` is the header's digest: equal keys are equal layouts of the same kind and epoch."""

    key: str
    header: bytes
    body: torch.Tensor  # uint8, one dimension


def pack(
    about: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
    infos: Sequence[CompressionInfo],
    compression: CompressionBase,
) -> Blob:
    """The tensors compressed, with `about` (what MessagePack can hold) in the header."""
    layout: list[tuple[bytes, int]] = []
    joined = bytearray()
    for tensor, info in zip(tensors, infos, strict=True):
        message = compression.compress(tensor, info, allow_inplace=False)
        data = message.buffer
        message.buffer = b""
        layout.append((message.SerializeToString(deterministic=True), len(data)))
        joined += data.ljust(aligned(len(data)), b"\0")
    header = MSGPackSerializer.dumps([dict(about), layout])
    body = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
    return Blob(key_of(header), header, body)


def key_of(header: bytes) -> str:
    """A `Blob`'s key."""
    return hashlib.sha256(header).hexdigest()[:32]


def unpack(header: bytes, body: torch.Tensor) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What `pack` was given, as exactly as its compression keeps it. Raises StateBytesError."""
    try:
        read: Any = MSGPackSerializer.loads(header)
        about, layout = read
        sizes = [aligned(size) for _, size in layout]
        if sum(sizes) != body.numel():
            raise StateBytesError(f"{body.numel()} bytes arrived, the header tells of {sum(sizes)}")
        tensors: list[torch.Tensor] = []
        at = 0
        for (described, size), room in zip(layout, sizes, strict=True):
            message = _protobuf.Tensor.FromString(described)
            message.buffer = body[at : at + size].numpy().tobytes()
            tensors.append(deserialize_torch_tensor(message).detach().clone())
            at += room
        return dict(about), tensors
    except StateBytesError:
        raise
    except Exception as error:  # whatever MessagePack, protobuf or torch say of strange bytes
        raise StateBytesError(f"the state cannot be read: {error!r}") from error


def shared(blob: Blob) -> Blob:
    """The same, for other processes to read without a copy."""
    return Blob(blob.key, blob.header, blob.body.share_memory_())


def aligned(size: int) -> int:
    """How many bytes of the body a tensor of so many takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT
