"""The size of the samples of generated data sets, measured once. Imports nothing, so that pure modules may read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SAMPLE_BYTES: Mapping[str, int] = MappingProxyType(
    {"glyphs": 3_557, "photos": 301_000, "stdlib": 1_024, "pages": 12_561, "power": 1_026_048}
)
"""Mean bytes of a training sample in its shard, the tar's headers included.

Measured with seed 0: 4096 glyphs (matplotlib 3.11, Pillow 13), 160 photos, all 21,414 texts of Python 3.11, 2,400 pages
of Python 3.11.7; power has one size. Absent: speech, whose size depends on the synthesiser that the machine has.
"""
