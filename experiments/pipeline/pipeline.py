"""A pipeline: the fields of a sample and the operations on them, checked when it is declared."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cloud.storage.samples import Sample
from experiments.pipeline.codecs import Kind, is_kind
from experiments.pipeline.errors import BadSampleError, PipelineError, describe_error
from experiments.pipeline.op import Op
from experiments.pipeline.randomness import Randomness
from experiments.pipeline.trace import SampleTrace

_OF_THE_MACHINE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)  # errors that no sample causes

Item = dict[str, Any]
"""A sample on its way through a pipeline, or what came out of it: values by field."""


@dataclass(frozen=True)
class Pipeline:
    """Operations on the fields of a sample, in order.

    `fields` maps each field to the extensions of the member that holds it, in order of preference: {"image": ("jpg",
    "png"), "label": ("cls",)}. A field starts as bytes; an operation may add another with `into`. Raises PipelineError if
    a field has no extension, or if an operation works on an unknown field, takes another kind than the field has there,
    or has the name of another operation.
    """

    name: str
    fields: Mapping[str, tuple[str, ...]]
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        for name, extensions in self.fields.items():
            if isinstance(extensions, str) or not extensions:
                raise PipelineError(
                    f"pipeline {self.name}: field {name} needs a tuple of extensions, such as ('jpg', 'png'), "
                    f"not {extensions!r}"
                )
        kinds: dict[str, Kind] = dict.fromkeys(self.fields, "bytes")
        names: set[str] = set()
        for op in self.ops:
            if op.name in names:
                raise PipelineError(f"pipeline {self.name}: two operations are named {op.name}; rename one")
            names.add(op.name)
            if op.field not in kinds:
                raise PipelineError(
                    f"pipeline {self.name}: operation {op.name} works on field {op.field!r}, which does not exist; "
                    f"use {', '.join(kinds)}"
                )
            if kinds[op.field] != op.takes:
                raise PipelineError(
                    f"pipeline {self.name}: operation {op.name} takes {op.takes}, but field {op.field} is "
                    f"{kinds[op.field]} there"
                )
            kinds[op.output] = op.gives

    def kinds(self, ops: int | None = None) -> dict[str, Kind]:
        """The kind of each field after the first `ops` operations (None: all)."""
        kinds: dict[str, Kind] = dict.fromkeys(self.fields, "bytes")
        for op in self.ops[:ops]:
            kinds[op.output] = op.gives
        return kinds

    def start(self, sample: Sample) -> Item:
        """Take the fields of a sample. Raises BadSampleError if a member is missing."""
        item: Item = {}
        for name, extensions in self.fields.items():
            for extension in extensions:
                if extension in sample:
                    item[name] = sample[extension]
                    break
            else:
                wanted = " or ".join(f"{sample['__key__']}.{extension}" for extension in extensions)
                raise BadSampleError(sample["__url__"], sample["__key__"], "", f"it has no member {wanted}")
        return item

    def run(self, sample: Sample, seed: int, pass_number: int, trace: SampleTrace | None = None) -> Item:
        """Run all operations on a sample. Raises BadSampleError, PipelineError, MemoryError, OSError of the machine."""
        item = self.start(sample)
        randomness = Randomness(seed, pass_number, sample["__key__"])
        for op in self.ops:
            try:
                item[op.output] = apply(op, item[op.field], randomness)
            except (PipelineError, MemoryError):
                raise
            except ImportError as error:
                raise PipelineError(
                    f"pipeline {self.name}, operation {op.name}: {describe_error(error)}; install the package on the peers "
                    "with 'requirements'"
                ) from error
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
                    raise
                reason = describe_error(error)
                raise BadSampleError(sample["__url__"], sample["__key__"], op.name, reason) from error
            if trace is not None:
                trace.op(op.name, item)
        return item

    def fingerprint(self, ops: int | None = None) -> str:
        """SHA-256 (hex) of what determines the values after the first `ops` operations (None: all), apart from the data
        and the seed. Raises PipelineError."""
        return sha256(json.dumps(self.declaration(ops), sort_keys=True).encode()).hexdigest()

    def declaration(self, ops: int | None = None) -> dict[str, Any]:
        """What `fingerprint` is the hash of, in JSON types: fields, and `Op.identity` of each. Raises PipelineError."""
        return {
            "fields": {name: list(extensions) for name, extensions in self.fields.items()},
            "ops": [op.identity() for op in self.ops[:ops]],
        }


def apply(op: Op, value: Any, randomness: Randomness) -> Any:
    """Run one operation on a field's value.

    Raises what its function raises, and PipelineError if the result is not of the kind that the operation declares.
    """
    arguments = {**op.parameters, **op.files}
    if op.random:
        arguments["rng"] = randomness.generator(op.name)
    result = op.function(value, **arguments)
    if not is_kind(op.gives, result):
        raise PipelineError(
            f"operation {op.name} ({op.call}) returned {type(result).__name__}, but it declares {op.gives}"
        )
    return result
