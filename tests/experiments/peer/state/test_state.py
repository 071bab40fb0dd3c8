"""A joiner must receive the others' state exactly: optimizer statistics are far below float16's range."""

from __future__ import annotations

import pytest
import torch
from hivemind.compression import CompressionInfo, TensorRole, deserialize_torch_tensor

from experiments.peer.optimizer.build import state_compression


def sent(tensor: torch.Tensor, role: TensorRole) -> tuple[torch.Tensor, int]:
    """Return the received tensor and its size in bytes."""
    message = state_compression().compress(tensor, CompressionInfo.from_tensor(tensor, role=role))
    return deserialize_torch_tensor(message), len(message.buffer)


def test_statistics_are_uncompressed_and_weights_float16():
    tiny = torch.tensor([1e-9, 1e-12, 3.0])
    assert torch.equal(sent(tiny, TensorRole.OPTIMIZER)[0], tiny)
    weights = torch.randn(1000)
    arrived, count = sent(weights, TensorRole.PARAMETER)
    assert torch.allclose(arrived, weights, rtol=1e-3)
    assert count == 2000


def test_first_step_of_a_joiner_has_the_same_length():
    """Adam's step with the received statistics, for gradients as small as the mean over a large batch."""
    gradient = torch.full((100,), 1e-5)
    moved: list[float] = []
    for joins in (False, True):
        weights = torch.nn.Parameter(torch.zeros(100))
        optimizer = torch.optim.Adam([weights], lr=0.02)
        for _ in range(3):
            weights.grad = gradient.clone()
            optimizer.step()
        if joins:
            state = optimizer.state[weights]
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = sent(state[name], TensorRole.OPTIMIZER)[0]
        before = weights.detach().clone()
        weights.grad = gradient.clone()
        optimizer.step()
        moved.append(float((weights.detach() - before).abs().max()))
    assert moved[1] == pytest.approx(moved[0], rel=1e-6)
