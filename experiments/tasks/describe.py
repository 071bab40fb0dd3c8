"""Build a task in a process of its own and describe its model: `python -m experiments.tasks.describe` (JSON in, JSON out).

Standard input: {"call", "with", "pipeline", "seed", "code_folder", "paths"}; `pipeline` is "module:NAME" or "", and
`code_folder` and `paths` (of wheels) are put first on the module search path. Standard output: {"parameters", "shapes"} of
the trained parameters, and "without_checkpointing", the class of the model if it has no gradient checkpointing, otherwise
""; or {"error"} with a sentence, and "missing" (a package that orch needs) or "absent" (a module that
the task needs) if that is the reason.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any


def describe(call: str, settings: Mapping[str, Any], pipeline: str, seed: int) -> dict[str, Any]:
    """Build the task and the pipeline that replaces its own, and count the parameters that are trained.

    `shapes`: [[sides], number of tensors], in the order of the model. Raises TaskError, PipelineError.
    """
    from experiments.tasks.build import build
    from experiments.tasks.errors import TaskError
    from experiments.tasks.gradient_checkpointing import offers_gradient_checkpointing

    task = build(call, settings, seed)
    if pipeline:
        _check_pipeline(pipeline)
    shapes = Counter(tuple(p.shape) for p in task.model.parameters() if p.requires_grad)
    parameters = sum(count * math.prod(shape) for shape, count in shapes.items())
    if parameters < 1:
        raise TaskError(f"task {call}: its model has no parameters to train")
    return {
        "parameters": parameters,
        "shapes": [[list(shape), count] for shape, count in shapes.items()],
        "without_checkpointing": ""
        if offers_gradient_checkpointing(task.model)
        else type(task.model).__name__,
    }


def _check_pipeline(path: str) -> None:
    import importlib

    from experiments.pipeline.pipeline import Pipeline, describe_error
    from experiments.tasks.errors import TaskError

    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise TaskError(f"pipeline {path} cannot be imported: {describe_error(error)}") from error
    if not isinstance(found, Pipeline):
        what = "it does not exist" if found is None else f"it is a {type(found).__name__}, not a Pipeline"
        raise TaskError(f"pipeline {path}: {what}")


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    sys.path[:0] = [request["code_folder"], *request["paths"]]
    try:
        from experiments.pipeline.errors import PipelineError
        from experiments.tasks.errors import TaskError

        try:
            return describe(request["call"], request["with"], request["pipeline"], request["seed"])
        except (TaskError, PipelineError) as error:
            return {"error": str(error), "absent": _absent_module(error)}
    except ModuleNotFoundError as error:  # of orch itself: the task's own are TaskErrors
        sentence = f"the task cannot be built here, because {error.name} is not installed"
        return {"error": sentence, "missing": error.name}
    except MemoryError:
        return {"error": "the model does not fit into the memory of this machine"}


def _absent_module(error: BaseException | None) -> str | None:
    """Name of the module that was not found, if that caused the error."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    return None if error is None else error.name


# What the user's code prints must not mix with the answer: it goes to the standard error.
if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump(_answer(json.load(sys.stdin)), answer)
