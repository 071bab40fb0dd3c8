"""Build the task that an experiment names: a built-in one, or a function of the user's own file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from experiments.pipeline.errors import PipelineError
from experiments.pipeline.op import function_at
from experiments.pipeline.pipeline import Pipeline, describe_error
from experiments.tasks.errors import TaskError
from experiments.tasks.protocol import Task

BUILT_IN = {
    "image-classification": "experiments.tasks.image_classification:build",
    "masked-lm": "experiments.tasks.masked_lm:build",
    "causal-lm": "experiments.tasks.causal_lm:build",
    "speech-recognition": "experiments.tasks.speech_recognition:build",
}
"""Import paths of the built-in tasks, by the name used in experiment files."""


def build(call: str, config: Mapping[str, Any], seed: int) -> Task:
    """Build the task of the function at `call` ("module:function") and check that it keeps the protocol.

    The weights depend on `seed` only: the global generator of torch is seeded before and restored afterwards. Raises
    TaskError, with the user's file and line if her function raises.
    """
    try:
        function = function_at(call)
    except PipelineError as error:
        raise TaskError(f"task {call}: {error}") from error
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        task = function(dict(config), seed)
    except (TaskError, PipelineError) as error:
        raise TaskError(f"task {call}: {error}") from error
    except Exception as error:
        raise TaskError(f"task {call} cannot be built: {describe_error(error)}") from error
    finally:
        torch.random.set_rng_state(state)
    _check(call, task)
    return task


def _check(call: str, task: Any) -> None:
    """Check what can be checked without data. Raises TaskError."""
    for name, kind in (("model", nn.Module), ("pipeline", Pipeline)):
        if not isinstance(getattr(task, name, None), kind):
            raise TaskError(f"task {call}: its '{name}' is not a {kind.__name__} (docs/tasks.md)")
    if not isinstance(getattr(task, "heldout_pipeline", None), Pipeline | None):
        raise TaskError(f"task {call}: its 'heldout_pipeline' is not a Pipeline (docs/tasks.md)")
    for name in ("parameter_groups", "save_files"):
        if not callable(getattr(task, name, print)):
            raise TaskError(f"task {call}: its '{name}' is not a method (docs/tasks.md)")
    for name in ("collate", "loss", "evaluate"):
        if not callable(getattr(task, name, None)):
            raise TaskError(f"task {call}: it has no method '{name}' (docs/tasks.md)")
    if not any(parameter.requires_grad for parameter in task.model.parameters()):
        raise TaskError(f"task {call}: its model has no parameters to train")
