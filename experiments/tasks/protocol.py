"""What a task provides: the contract between a peer and the code that it trains (docs/tasks.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.errors import TaskError as TaskError

Batch = Any
"""Tensors on the CPU, alone or in (nested) tuples, lists and dicts; the peer moves them to the accelerator."""


class Task(Protocol):
    """A model that is trained, on what, and how its quality is measured.

    Optional members:
    - `heldout_pipeline`: a Pipeline for held-out samples (default: `pipeline`).
    - `parameter_groups()`: groups as torch.optim takes them (default: one group of all parameters that require gradients).
    - `save_files(folder)`: writes what belongs to the model besides its weights, such as a tokenizer, into a folder
      (pathlib.Path) that exists (`saving.save`).
    """

    @property
    def model(self) -> nn.Module:
        """The module that is trained. The peer moves it to its accelerator and calls train() and eval()."""
        ...

    @property
    def pipeline(self) -> Pipeline:
        """What happens to a stored sample before `collate` gets it."""
        ...

    def collate(self, items: Sequence[Item]) -> Batch:
        """Make a batch of items of the pipeline, on the CPU."""
        ...

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch that was moved to the model's device: a finite scalar with a gradient."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Figures over all held-out batches, on the model's device, without gradients; "loss" should be among them.

        Well-known names: loss (mean over what the loss averages), accuracy (0 to 1), perplexity, wer (word error rate).
        """
        ...


class Build(Protocol):
    """Builds a task. Equal settings and seeds must give equal weights, on any machine."""

    def __call__(self, config: Mapping[str, Any], seed: int) -> Task:
        """`config`: the settings of `task.with`. Raises TaskError for settings that are wrong."""
        ...
