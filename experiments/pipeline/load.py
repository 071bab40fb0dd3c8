"""Find the pipeline that a module of the user defines."""

from __future__ import annotations

import importlib

from experiments.pipeline.errors import PipelineError, describe_error
from experiments.pipeline.pipeline import Pipeline


def pipeline_at(path: str) -> Pipeline:
    """Import the Pipeline at "module:NAME". Raises PipelineError, with file and line for what the module raises."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise PipelineError(f"{path!r} does not name a pipeline; write it as module:NAME")
    try:
        found = getattr(importlib.import_module(module), name)
    except PipelineError:
        raise
    except AttributeError as error:
        raise PipelineError(f"{path}: {module} defines no {name}; correct the name") from error
    except Exception as error:
        raise PipelineError(
            f"{path}: cannot be imported ({describe_error(error)}); correct the file"
        ) from error
    if not isinstance(found, Pipeline):
        raise PipelineError(f"{path} is a {type(found).__name__}, not a Pipeline (docs/pipelines.md)")
    return found
