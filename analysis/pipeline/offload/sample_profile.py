"""What each sample of a data set is after each operation of its pipeline, and what the operations take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SampleProfile:
    """n samples and m operations.

    `raw_bytes`: (n,), as stored. `size_bytes`: (n, m), after each operation. `op_s`: (n, m), CPU seconds of each operation
    on the client, None: unknown. Raises ValueError for shapes that do not fit, no sample, and values that are negative or
    not finite.
    """

    keys: Sequence[str]
    ops: tuple[str, ...]
    raw_bytes: Floats
    size_bytes: Floats
    op_s: Floats | None = None

    def __post_init__(self) -> None:
        n, m = len(self.keys), len(self.ops)
        if not n or not m:
            raise ValueError("a profile needs a sample and an operation at least")
        for name, values, shape in (
            ("raw_bytes", self.raw_bytes, (n,)),
            ("size_bytes", self.size_bytes, (n, m)),
            ("op_s", self.op_s, (n, m)),
        ):
            if values is None:
                continue
            if values.shape != shape:
                raise ValueError(f"{name} has the shape {values.shape}, not {shape}")
            if not np.all(np.isfinite(values) & (values >= 0)):
                raise ValueError(f"{name} holds a value that is negative or not finite")

    @property
    def sizes(self) -> Floats:
        """(n, m + 1): bytes of each sample with its first 0 to m operations done."""
        return np.column_stack([self.raw_bytes, self.size_bytes])

    @property
    def smallest(self) -> npt.NDArray[np.intp]:
        """(n,): the fewest operations after which a sample is smallest; 0: it is as it is stored."""
        return np.argmin(self.sizes, axis=1)
