"""Find a pipeline: a built-in one by name, or the user's by "module:NAME" or "file.py:NAME"."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.pipeline.errors import PipelineError, describe_error
from experiments.pipeline.op import import_from
from experiments.pipeline.pipeline import Pipeline

_HERE = "experiments.pipeline.builtin"

BUILT_IN = {
    "digits": f"{_HERE}.digits:pipeline",
    "imagenet": f"{_HERE}.imagenet:pipeline",
    "imagenet-heldout": f"{_HERE}.imagenet:heldout_pipeline",
    "imagenet-resize": f"{_HERE}.imagenet_resize:pipeline",
    "images": f"{_HERE}.images:pipeline",
    "images-heldout": f"{_HERE}.images:heldout_pipeline",
    "text-lm": f"{_HERE}.text:lm_pipeline",
    "text-mlm": f"{_HERE}.text:mlm_pipeline",
    "text": f"{_HERE}.page_text:pipeline",
    "speech": f"{_HERE}.speech:pipeline",
    "speech-mel": f"{_HERE}.speech_mel:pipeline",
    "power": f"{_HERE}.power:pipeline",
}
"""Import paths of the functions that build the built-in pipelines."""


def load_pipeline(
    where: str, settings: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Pipeline:
    """Return the pipeline that `where` names.

    `where` is a key of BUILT_IN, whose function gets `settings` as keywords; or "package.module:NAME"; or "file.py:NAME",
    with a path relative to `folder` (default: the current one). The folder of a file is put first on sys.path and stays
    there, because operations name their functions by import path. Raises PipelineError.
    """
    settings = dict(settings or {})
    if where in BUILT_IN:
        return _built(where, settings)
    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise PipelineError(
            f"{where!r} is no pipeline; use {', '.join(BUILT_IN)}, or your own as file.py:NAME or module:NAME"
        )
    if settings:
        raise PipelineError(f"pipeline {where} takes no settings, but got {', '.join(settings)}; remove them")
    if place.endswith(".py"):
        return pipeline_at(f"{_module_of(place, folder or Path())}:{name}")
    return pipeline_at(where)


def pipeline_at(path: str) -> Pipeline:
    """Import the Pipeline at "module:NAME". Raises PipelineError, with file and line for what the module raises."""
    found = import_from(path)
    if not isinstance(found, Pipeline):
        raise PipelineError(f"{path} is a {type(found).__name__}, not a Pipeline (docs/pipelines.md)")
    return found


def _module_of(place: str, folder: Path) -> str:
    """Make a file importable; returns the name of its module. Raises PipelineError."""
    file = (folder / place).resolve()
    if not file.is_file():
        raise PipelineError(f"{place} does not exist in {folder.resolve()}; correct the path")
    module = file.stem
    if not module.isidentifier():
        raise PipelineError(f"{place} cannot be imported: {module} is not a name in Python; rename the file")
    loaded = sys.modules.get(module)
    source = getattr(loaded, "__file__", None)
    if loaded is not None and (source is None or Path(source).resolve() != file):
        raise PipelineError(
            f"{place} has the name of the module {source or module}, which is loaded; rename the file"
        )
    if sys.path[:1] != [str(file.parent)]:
        sys.path.insert(0, str(file.parent))
    return module


def _built(name: str, settings: dict[str, Any]) -> Pipeline:
    build = import_from(BUILT_IN[name])
    signature = inspect.signature(build)
    try:
        signature.bind(**settings)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise PipelineError(f"pipeline {name}: {error}; its settings are {known}") from error
    try:
        return build(**settings)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(
            f"pipeline {name} cannot be built from {settings}: {describe_error(error)}"
        ) from error
