"""What a peer's parameters are compared with other peers' by: a hash, and some of the values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch

SAMPLED = 65_536  # values, at most


def parameters_sha(parameters: Iterable[torch.Tensor]) -> str:
    """SHA-256 (hex) of the parameters rounded to float16, in their order; shapes do not count."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().to("cpu", torch.float16).contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_sample(path: Path, parameters: Iterable[torch.Tensor]) -> None:
    """Write evenly spread values, little-endian float32, for peers whose hashes differ by a rounding.

    Peers that downloaded a state have its weights in float16. Raises OSError.
    """
    flat = [parameter.detach().reshape(-1) for parameter in parameters]
    step = -(-sum(values.numel() for values in flat) // SAMPLED)
    sampled, first = list[torch.Tensor](), 0
    for values in flat:
        sampled.append(values[first::step].to("cpu", torch.float32))
        first = (first - values.numel()) % step
    path.write_bytes(torch.cat(sampled).numpy().astype("<f4").tobytes())
