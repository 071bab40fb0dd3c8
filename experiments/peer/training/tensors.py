"""Tensors in nested batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """Apply a function to each tensor in (nested) tuples, named tuples, lists and mappings; other values stay."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(function, value) for value in batch)
    return batch
