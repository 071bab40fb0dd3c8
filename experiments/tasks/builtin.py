"""What the built-in tasks have in common: source, batches of items, evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.build import BUILT_IN
from experiments.tasks.errors import TaskError
from experiments.tasks.settings import Settings

IGNORED = -100
"""The label of a position that is not predicted (the convention of torch and transformers)."""


class BuiltInTask:
    """A built-in task: its model, pipelines and settings."""

    def __init__(
        self, kind: str, settings: Settings, model: nn.Module, pipeline: Pipeline, heldout_pipeline: Pipeline
    ) -> None:
        self.kind, self.settings, self.model = kind, settings, model
        self.pipeline, self.heldout_pipeline = pipeline, heldout_pipeline

    @property
    def source(self) -> Mapping[str, Any]:
        """How the task is built again from its saved files: {"call": ..., "with": ...}; paths are names in the folder."""
        settings = self.settings.model_dump(exclude_defaults=True, exclude={"weights"})
        for name, file in (("config", "config.json"), ("tokenizer", "tokenizer.json")):
            if name in settings:
                settings[name] = file
        return {"call": BUILT_IN[self.kind], "with": settings}

    def save_files(self, folder: Path) -> None:
        """Write what belongs to the model besides its weights and config."""


def stack(task: str, items: Sequence[Item], field: str, dtype: np.dtype | type) -> torch.Tensor:
    """Stack one field of the items, arrays or numbers, into a tensor of (items, ...). Raises TaskError."""
    missing = [item for item in items if field not in item]
    if missing:
        raise TaskError(
            f"{task} needs a field {field!r}, but the pipeline gives only {', '.join(missing[0])}; add it to the pipeline"
        )
    arrays = [np.asarray(item[field]) for item in items]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise TaskError(
            f"field {field!r}: samples of the shapes {' and '.join(map(str, shapes))} cannot form a batch; "
            "let the pipeline cut or pad them to one shape"
        )
    return torch.from_numpy(np.stack(arrays).astype(dtype, copy=False))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the model's mode is restored afterwards."""
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(before)


def logits_of(output: Any) -> torch.Tensor:
    """The logits of a model's output, which is a tensor or an output of transformers."""
    return getattr(output, "logits", output)


def mean(total: float, count: int, what: str) -> float:
    """Mean over all held-out data. Raises TaskError if there were none."""
    if not count:
        raise TaskError(f"the held-out data have no {what} to evaluate; add samples to data.heldout")
    return total / count


def perplexity(loss: float) -> float:
    """exp(loss); infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 700 else math.inf
