"""Samples on their way from the server: some as they are stored, of others the values after their first operations.

A member `image.op2.webp` is the field `image` after the first 2 operations; the member that it was made of is left out.
webdataset's own decoders go by the last part of such an extension, so other programs can read these samples, too.
"""

from __future__ import annotations

import re
from typing import Any

from cloud.storage.samples import Sample
from cloud.storage.shards import Record
from experiments.offload.errors import PlanError
from experiments.offload.plan import Choice, OffloadPlan
from experiments.pipeline.codecs import Kind
from experiments.pipeline.errors import BadSampleError
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.pipeline.stored import STORED_CODECS, FirstOps
from experiments.pipeline.trace import SampleTrace

_MEMBER = re.compile(r"(?P<field>.+)\.op(?P<ops>[1-9][0-9]{0,5})\.[a-z.]+")


class OffloadedOps(FirstOps):
    """The first operations of a pipeline as the server runs them: random ones, too, with the random numbers of the pass."""

    @property
    def _marker(self) -> str:
        return f"op{self.ops}."

    def _encoded(self, value: Any, kind: Kind) -> bytes:
        if kind == "image" and self.codec != "png" and "transparency" in value.info:
            raise ValueError(f"codec {self.codec} cannot hold an image with transparency; use png")
        return super()._encoded(value, kind)


class Transformer:
    """What the server makes of a sample. Raises PlanError and PipelineError if the plan does not fit the pipeline."""

    def __init__(self, pipeline: Pipeline, plan: OffloadPlan) -> None:
        plan.check(pipeline)
        self._pipeline = pipeline
        self._plan = plan
        self._firsts: dict[Choice, OffloadedOps] = {}

    def __call__(self, sample: Sample, pass_number: int) -> Record:
        """Return the sample with the values of its operations, or as it is stored if the plan has none for it.

        Raises what the operations raise; BadSampleError also if the codec cannot hold a value.
        """
        choice = self._plan.choices.get(sample["__key__"])
        if choice is None or not choice.ops:
            return as_stored(sample)
        first = self._firsts.get(choice)
        if first is None:
            first = self._firsts[choice] = OffloadedOps(self._pipeline, choice.ops, choice.codec)
        return first.record(sample, self._plan.seed, pass_number)


def as_stored(sample: Sample) -> Record:
    """All members of a sample."""
    members = {ext: data for ext, data in sample.items() if ext not in ("__key__", "__url__")}
    return Record(sample["__key__"], members)


class MixedPipeline:
    """Runs a pipeline on samples from the server: all operations of those that are as stored, the other ones of the rest.

    An item is bit for bit that of `Pipeline.run` on the stored sample. It can stand where a Pipeline runs samples.
    """

    def __init__(self, pipeline: Pipeline, plan_seed: int) -> None:
        """`plan_seed`: with which the server draws random numbers."""
        self.name = pipeline.name
        self._plan_seed = plan_seed
        self._pipeline = pipeline
        self._rests: dict[tuple[int, frozenset[str]], Pipeline] = {}

    def run(self, sample: Sample, seed: int, pass_number: int, trace: SampleTrace | None = None) -> Item:
        """Run the operations that are left. Raises what `Pipeline.run` raises; BadSampleError for members that no
        operations of this pipeline leave; PlanError for another seed than the plan's."""
        if seed != self._plan_seed:
            raise PlanError(
                f"the plan of offloading was made for seed {self._plan_seed}, and the run has seed {seed}; make the plan again"
            )
        return self.rest(sample).run(sample, seed, pass_number, trace)

    def rest(self, sample: Sample) -> Pipeline:
        """The pipeline of the operations that are left for this sample. Raises BadSampleError."""
        found = offloaded_members(self._pipeline, sample)
        if not found:
            return self._pipeline
        counts = set(found.values())
        ops, names = counts.pop(), frozenset(found)
        if (ops, names) not in self._rests:
            if counts or ops > len(self._pipeline.ops):
                raise _bad_members(sample, names)
            for codec in STORED_CODECS:
                first = OffloadedOps(self._pipeline, ops, codec)
                if names == set(first.extensions.values()):
                    self._rests[ops, names] = first.online
                    break
            else:
                raise _bad_members(sample, names)
        return self._rests[ops, names]


def offloaded_members(pipeline: Pipeline, sample: Sample) -> dict[str, int]:
    """The number of operations that have run, by extension, of the members that the server wrote."""
    found: dict[str, int] = {}
    for extension in sample:
        match = _MEMBER.fullmatch(extension)
        if match is not None and match["field"] in pipeline.kinds():
            found[extension] = int(match["ops"])
    return found


def _bad_members(sample: Sample, names: frozenset[str]) -> BadSampleError:
    reason = f"its members {', '.join(sorted(names))} are not the values after the first operations of this pipeline"
    return BadSampleError(sample["__url__"], sample["__key__"], "", reason)
