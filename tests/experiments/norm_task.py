"""A task of the tests with batch normalisation: a small network on digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from small_task import SmallTask
from torch import nn


class NormTask(SmallTask):
    """`SmallTask` with another model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All parameters learn alike."""
        return [{"params": list(self.model.parameters())}]


def build(config: Mapping[str, Any], seed: int) -> NormTask:
    """Build it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NormTask(config)
