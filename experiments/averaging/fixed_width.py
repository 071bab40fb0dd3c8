"""Compressions with a fixed number of bits per gradient value."""

from __future__ import annotations

from experiments.averaging.records import Compression

NONE = Compression(name="none", bits_per_value=32, value_format="float32", codec="NoCompression")
FLOAT16 = Compression(
    name="float16",
    bits_per_value=16,
    value_format="float16",
    audit_wording="in FP16",
    codec="Float16Compression",
    update_codec="Float16Compression",
)
_LEVELS_BYTES = 256 * 4  # float32, with each part
UNIFORM_8BIT = Compression(
    name="uniform8bit",
    bits_per_value=8,
    part_bytes=8 + _LEVELS_BYTES,
    value_format="uniform8bit",
    codec="Uniform8Bit",
)
BLOCKWISE_8BIT = Compression(
    name="blockwise8bit",
    bits_per_value=8,
    part_bytes=16 + _LEVELS_BYTES,
    value_format="blockwise8bit",
    codec="Blockwise8Bit",
)
