"""8-bit gradients: small decoding errors, in Hivemind's own formats and with its own functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionInfo, deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto import runtime_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.averaging import methods
from experiments.averaging.records import PART_BYTES
from experiments.peer.averaging.eight_bit import BLOCK
from experiments.peer.optimizer.build import compression_of

NAMES = ("uniform8bit", "blockwise8bit")


def there_and_back(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Encode and decode with the functions that a round calls; returns the tensor and its bytes."""
    written = serialize_torch_tensor(tensor, compression_of(name).compression_type)
    return deserialize_torch_tensor(runtime_pb2.Tensor.FromString(written.SerializeToString())), len(
        written.buffer
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1,), (7,), (BLOCK,), (BLOCK + 1,), (300, 40), (3, 2, 5)])
def test_each_value_takes_one_byte_with_a_small_error(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    found, size = there_and_back(name, tensor)
    assert found.shape == tensor.shape
    assert found.dtype == tensor.dtype
    assert size <= tensor.numel() + 256 * 4 + 16 + 4 * (tensor.numel() // BLOCK + 1)
    assert float((found - tensor).norm()) < 0.04 * float(tensor.norm())


@pytest.mark.parametrize("name", ["none", "float16", *NAMES])
def test_bytes_of_a_gradient_are_those_of_hivemind_s_parts(name: str) -> None:
    """Each tensor has parts of its own; their number depends on the bytes of a value."""
    sizes, codec = (PART_BYTES * 5 // 4, 100), compression_of(name)
    tensors = [torch.zeros(size) for size in sizes]
    split = TensorPartContainer(tensors, (1.0,), codec, PART_BYTES)
    info = CompressionInfo.from_tensor(tensors[0])
    parts = [len(codec.compress(part, info).buffer) for part in split.get_raw_input_parts(0)]
    scales = sum(4 * -(-size // BLOCK) for size in sizes) if name == "blockwise8bit" else 0
    record = methods.compression_of(name)
    assert len(parts) == sum(-(-size * record.bits_per_value // 8 // PART_BYTES) for size in sizes)
    shapes = tuple(((size,), 1) for size in sizes)
    assert sum(parts) == record.gradient_bytes(shapes, sum(sizes)) + scales


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5e-5, 2.0e30])
def test_equal_values_are_exact(name: str, value: float) -> None:
    found, _ = there_and_back(name, torch.full((BLOCK + 10,), value))
    assert torch.allclose(found, torch.full((BLOCK + 10,), value), rtol=0.01, atol=0.0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=60))
def test_error_is_bounded_and_decoding_is_deterministic(name: str, values: list[float]) -> None:
    tensor = torch.tensor(values)
    found, _ = there_and_back(name, tensor)
    again, _ = there_and_back(name, tensor)
    assert torch.equal(found, again)
    # blockwise: half of the widest level, 0.9 / 64. Uniform: what is over 3 deviations away is read as nearer to the mean
    spread = float((tensor - tensor.mean()).abs().max())
    limit = (
        0.0071 * float(tensor.abs().max())
        if name == "blockwise8bit"
        else spread + 1e-4 * float(tensor.abs().max())
    )
    assert float((found - tensor).abs().max()) <= limit + 1e-30


def test_small_values_of_a_block_keep_precision() -> None:
    tensor = torch.cat([torch.ones(1), torch.full((BLOCK - 1,), 1e-4)])
    found, _ = there_and_back("blockwise8bit", tensor)
    assert torch.allclose(found, tensor, rtol=0.3)


def test_nan_is_not_hidden() -> None:
    for name in NAMES:
        found, _ = there_and_back(name, torch.tensor([1.0, float("nan"), 2.0]))
        assert found.isnan().any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "buffer",
    [
        b"",
        np.int64(-1).tobytes() * 2,
        np.int64(2**40).tobytes() * 2,
        np.int64(1).tobytes() * 2 + bytes(12),
        np.int64(256).tobytes() + bytes(256 * 4 + 3),
    ],
)
def test_invalid_bytes_are_refused(name: str, buffer: bytes) -> None:
    written = serialize_torch_tensor(torch.ones(4), compression_of(name).compression_type)
    written.buffer = buffer
    with pytest.raises(ValueError, match=r"8bit|8-bit"):
        deserialize_torch_tensor(written)
