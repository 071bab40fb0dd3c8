"""Collective operations among the processes of one VM: torch.distributed with NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

_TIMEOUT = timedelta(minutes=10)  # of one operation, for ranks that load data meanwhile


class RankGroup:
    """The processes of one VM, one for each accelerator. Rank 0 is the peer; all ranks call the same methods in the same order.

    They connect over the loopback interface, whose traffic is not billed and not counted as egress. When a rank ends, the
    others' operations raise RuntimeError; with NCCL only after a time limit.
    """

    def __init__(self, rank: int, count: int, meeting: Path, device: torch.device) -> None:
        """Wait for all `count` ranks. `meeting`: a file that does not exist yet, in a folder that all of them can write."""
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ[name] = "lo"
        self._rank, self._count, self._device = rank, count, device
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=meeting.absolute().as_uri(),
            rank=rank,
            world_size=count,
            timeout=_TIMEOUT,
            device_id=device if on_gpu else None,
        )

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace rank 0's gradients by the mean of all ranks', and those of the others by zeros."""
        gradients = [_gradient(parameter) for parameter in parameters]
        for work in [dist.reduce(gradient, 0, async_op=True) for gradient in gradients]:
            assert work is not None  # this process is one of the group
            work.wait()
        for gradient in gradients:
            if self._rank == 0:
                gradient.div_(self._count)
            else:
                gradient.zero_()

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite the tensors of all ranks with rank 0's."""
        for work in [dist.broadcast(tensor.detach(), 0, async_op=True) for tensor in tensors]:
            assert work is not None
            work.wait()

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
