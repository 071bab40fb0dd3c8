"""Digests for comparing the parameters of peers: a hash and a sample of the values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch

SAMPLED = 65_536  # maximum number of values


def parameters_sha(parameters: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 (hex) of the parameters rounded to float16, in order; independent of shapes."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().to("cpu", torch.float16).contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_sample(path: Path, parameters: Iterable[torch.Tensor]) -> None:
    """Write evenly spaced values as little-endian float32, to compare peers whose hashes differ by rounding only.

    Peers that downloaded a state received its weights in float16. Raises OSError.
    """
    flat = [parameter.detach().reshape(-1) for parameter in parameters]
    step = -(-sum(values.numel() for values in flat) // SAMPLED)
    sampled, first = list[torch.Tensor](), 0
    for values in flat:
        sampled.append(values[first::step].to("cpu", torch.float32))
        first = (first - values.numel()) % step
    path.write_bytes(torch.cat(sampled).numpy().astype("<f4").tobytes())
