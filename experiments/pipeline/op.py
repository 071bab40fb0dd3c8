"""One operation of a pipeline, and the function that it names."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from experiments.pipeline.codecs import CODECS, DEFAULT_CODEC, KINDS, Kind
from experiments.pipeline.errors import PipelineError, describe_error


@dataclass(frozen=True)
class Op:
    """An operation: replaces the value of one field by what a function makes of it.

    `call` is the function's import path, "package.module:function". It is called with the field's value, and with
    `parameters` and `files` as keywords; the function of a `random` operation also gets `rng`, a
    numpy.random.Generator, and must use no other source of randomness. A function must not change its argument. With
    `into` the result is stored in that field, and `field` keeps its value. Raises PipelineError for a kind or codec that
    does not exist, a codec of another kind, or parameters that JSON cannot hold.
    """

    name: str
    call: str
    field: str
    takes: Kind
    gives: Kind
    parameters: Mapping[str, Any] = dataclass_field(default_factory=dict)  # JSON types
    random: bool = False
    codec: str = ""  # of the output; "": the default codec of its kind
    libraries: tuple[
        str, ...
    ] = ()  # distributions whose version determines the output; "python": Python itself
    into: str = ""  # field of the result; "": `field`
    files: Mapping[str, str] = dataclass_field(
        default_factory=dict
    )  # path by parameter; only the content counts

    def __post_init__(self) -> None:
        if not self.name:
            raise PipelineError(f"an operation that calls {self.call} has no name; give it one")
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
        try:
            json.dumps(dict(self.parameters))
        except (TypeError, ValueError) as error:
            raise PipelineError(
                f"operation {self.name}: its parameters cannot be written as JSON ({error}); use numbers, texts, "
                "lists and dicts"
            ) from error

    @property
    def output(self) -> str:
        """The field that gets the result."""
        return self.into or self.field

    @property
    def function(self) -> Callable[..., Any]:
        """The function that `call` names. Raises PipelineError."""
        return function_at(self.call)

    def identity(self) -> dict[str, Any]:
        """Everything that determines the output, in JSON types: declaration, source, files, versions of libraries.

        The source is that of the function's whole module, because a function may use others of it. Of a file only the
        SHA-256 of its content counts, not its path. Raises PipelineError if a library is not installed or a file cannot
        be read.
        """
        return {
            "name": self.name,
            "call": self.call,
            "field": self.field,
            "into": self.output,
            "takes": self.takes,
            "gives": self.gives,
            "parameters": dict(self.parameters),
            "files": {name: _sha256(self.name, path) for name, path in self.files.items()},
            "random": self.random,
            "codec": self.codec,
            "source": _source(self.call),
            "libraries": {name: _version(self.name, name) for name in self.libraries},
        }


@cache
def function_at(call: str) -> Callable[..., Any]:
    """Import the function at "package.module:function". Raises PipelineError, also for what its module raises."""
    found = import_from(call)
    if not callable(found):
        raise PipelineError(f"{call} is not a function")
    return found


def import_from(path: str) -> Any:
    """Import what "package.module:NAME" names. Raises PipelineError, also for what the module raises."""
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise PipelineError(f"{path!r} is not an import path; write it as package.module:NAME")
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        reason = str(error) if is_absent else describe_error(error)
        raise PipelineError(
            f"{path}: cannot be imported ({reason}); correct the path or the file, or ship the file"
        ) from error
    if not hasattr(imported, name):
        raise PipelineError(f"{path}: {module} defines no {name}; correct the name")
    return getattr(imported, name)


@cache
def _source(call: str) -> str:
    module = inspect.getmodule(function_at(call))
    file = getattr(module, "__file__", None)
    if file is None:
        raise PipelineError(f"{call}: its source cannot be read; define it in a file")
    return Path(file).read_text(encoding="utf-8")


def _version(op: str, library: str) -> str:
    if library == "python":
        return python_version()
    try:
        return version(library)
    except PackageNotFoundError as error:
        raise PipelineError(f"operation {op} needs {library}, which is not installed") from error


def _sha256(op: str, path: str) -> str:
    try:
        return sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise PipelineError(f"operation {op}: {path} cannot be read ({error.strerror})") from error
