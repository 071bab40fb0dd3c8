"""One operation of a pipeline, and the function that it names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.pipeline.codecs import CODECS, DEFAULT_CODEC, KINDS, Kind
from experiments.pipeline.errors import PipelineError


@dataclass(frozen=True)
class Op:
    """An operation: replaces the value of one field by what a function makes of it.

    `call` is the function's import path, "package.module:function". It is called with the field's value and `parameters`
    as keywords; the function of a `random` operation also gets `rng`, a numpy.random.Generator, and must use no other
    source of randomness. A function must not change its argument. Raises PipelineError for a kind or codec that does not
    exist, or a codec of another kind.
    """

    name: str
    call: str
    field: str
    takes: Kind
    gives: Kind
    parameters: Mapping[str, Any] = field(default_factory=dict)  # JSON types
    random: bool = False
    codec: str = ""  # of the output; "": the default codec of its kind
    libraries: tuple[str, ...] = ()  # distributions whose version determines the output

    def __post_init__(self) -> None:
        for kind in (self.takes, self.gives):
            if kind not in KINDS:
                raise PipelineError(f"operation {self.name}: {kind!r} is not a kind; use {', '.join(KINDS)}")
        codec = self.codec or DEFAULT_CODEC[self.gives]
        fitting = [c.name for c in CODECS.values() if c.kind == self.gives]
        if codec not in fitting:
            raise PipelineError(
                f"operation {self.name}: codec {codec!r} cannot hold a value of kind {self.gives}; "
                f"use {' or '.join(fitting)}"
            )
        object.__setattr__(self, "codec", codec)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that `call` names. Raises PipelineError."""
        return function_at(self.call)

    def identity(self) -> dict[str, Any]:
        """Everything that determines the output, in JSON types: declaration, source, versions of libraries.

        The source is that of the function's whole module, because a function may use others of it. Raises
        PipelineError if a library is not installed.
        """
        return {
            "name": self.name,
            "call": self.call,
            "field": self.field,
            "takes": self.takes,
            "gives": self.gives,
            "parameters": dict(self.parameters),
            "random": self.random,
            "codec": self.codec,
            "source": _source(self.call),
            "libraries": {name: _version(self.name, name) for name in self.libraries},
        }


@cache
def function_at(call: str) -> Callable[..., Any]:
    """Import the function at "package.module:function". Raises PipelineError."""
    module, colon, name = call.partition(":")
    if not colon or not module or not name:
        raise PipelineError(f"{call!r} is not an import path; write it as package.module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"{call}: cannot be imported ({error}); correct the path, or ship the file"
        ) from error
    if not callable(found):
        raise PipelineError(f"{call} is not a function")
    return found


@cache
def _source(call: str) -> str:
    module = inspect.getmodule(function_at(call))
    file = getattr(module, "__file__", None)
    if file is None:
        raise PipelineError(f"{call}: its source cannot be read; define it in a file")
    return Path(file).read_text(encoding="utf-8")


def _version(op: str, library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError as error:
        raise PipelineError(f"operation {op} needs {library}, which is not installed") from error
