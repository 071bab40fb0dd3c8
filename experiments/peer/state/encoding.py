"""Encoding of a state as bytes whose layout is the same on all peers of one epoch, so that an interrupted download can
resume from another donor.

The header describes each tensor and its size. The body holds the compressed tensors one after the other. Tensors
start at multiples of 8 bytes and chunks are cut at such multiples, so no number is ever assembled from the bytes of
two donors. The donors' numbers differ only by the rounding of float16 averaging.
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

_protobuf: Any = runtime_pb2  # generated code without type information
ALIGNMENT = 8  # bytes
CHUNK_BYTES = 64 * 1024


class StateBytesError(Exception):
    """The received bytes are not a valid state."""


@dataclass(frozen=True)
class Blob:
    """An encoded state or update. `key` is the header's digest: equal keys mean equal layout, kind and epoch."""

    key: str
    header: bytes
    body: torch.Tensor  # uint8, one dimension


def pack(
    about: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
    infos: Sequence[CompressionInfo],
    compression: CompressionBase,
) -> Blob:
    """Compress the tensors and store `about` (MessagePack types) in the header."""
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
    """Return the key of a `Blob` with this header."""
    return hashlib.sha256(header).hexdigest()[:32]


def unpack(header: bytes, body: torch.Tensor) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Decode `about` and the tensors that were packed. Raises StateBytesError."""
    try:
        read: Any = MSGPackSerializer.loads(header)
        about, layout = read
        sizes = [aligned(size) for _, size in layout]
        if sum(sizes) != body.numel():
            raise StateBytesError(f"received {body.numel()} bytes, the header announces {sum(sizes)}")
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
    except Exception as error:  # MessagePack, protobuf and torch raise many types of errors for invalid bytes
        raise StateBytesError(f"the state cannot be read: {error!r}") from error


def shared(blob: Blob) -> Blob:
    """Move the body to shared memory, so that other processes can read it without a copy."""
    return Blob(blob.key, blob.header, blob.body.share_memory_())


def aligned(size: int) -> int:
    """Round a tensor's size in bytes up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
