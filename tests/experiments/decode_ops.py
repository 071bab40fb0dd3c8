"""Operations of the loader's tests, importable in worker processes."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np


def noisy(data: bytes, *, rng: np.random.Generator) -> np.ndarray:
    """Bytes as an array with noise; some take longer than others, so that workers finish out of order."""
    if data.startswith(b"bad"):
        raise ValueError("it is bad")
    time.sleep(0.002 * (data[0] % 3))
    return np.frombuffer(data, np.uint8) + rng.normal(size=len(data))


def unpicklable(data: bytes) -> np.ndarray:
    """An array of an object that pickle refuses."""
    return np.array([lambda: data], dtype=object)


def die(data: bytes) -> Any:
    os._exit(7)


def leave(data: bytes) -> Any:
    raise SystemExit(3)


def too_large(data: bytes) -> Any:
    raise MemoryError


def process_id(data: bytes) -> int:
    time.sleep(0.01)
    return os.getpid()
