"""What a pipeline declares of each operation, and the size of a sample after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from experiments.pipeline.errors import BadSampleError
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import STORED_CODECS, Prefix, storable
from experiments.pipeline.trace import SampleTrace, size_of
from experiments.pipeline.trace_format import NO_NUMBER

if TYPE_CHECKING:
    from cloud.storage.samples import Sample
    from orchestrator.pipeline.opened import OpenInput

_IMAGE_CODECS = ("png", "webp")


class Sizes(SampleTrace):
    """Bytes of samples in memory after each operation. An unknown size makes the mean unknown."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[str, list[int | None]] = {}

    def op(self, name: str, item: Any) -> None:
        """Note the size of `item` after the operation."""
        size = size_of(item)
        self._sizes.setdefault(name, []).append(None if size == NO_NUMBER else size)

    def add(self, other: Sizes) -> None:
        """Add the samples of another one."""
        for name, sizes in other._sizes.items():
            self._sizes.setdefault(name, []).extend(sizes)

    def mean(self, name: str) -> float | None:
        """The mean of all samples; None if there are none or a size is unknown."""
        return mean(self._sizes.get(name, []))


def mean(values: Sequence[int | None]) -> float | None:
    """The mean; None if there are none or one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def first_samples(found: OpenInput, count: int) -> list[Sample]:
    """The first samples of the shards, at most `count`. Raises StorageError."""
    import webdataset.tariterators  # noqa: F401 - read_shard needs it

    from cloud.storage.samples import read_shard

    def samples() -> Iterator[Sample]:
        for shard in found.shards:
            yield from read_shard(shard, found.opener.open(shard))

    return list(islice(samples(), count))


def stored_bytes(samples: Iterable[Sample]) -> float | None:
    """Mean bytes of the members of a sample as it is in the shard, without the tar's headers. None: no samples."""
    return mean(
        [sum(len(value) for key, value in sample.items() if not key.startswith("__")) for sample in samples]
    )


def measured(found: OpenInput, samples: Sequence[Sample]) -> tuple[Sizes, int]:
    """Run the pipeline on samples. Returns the sizes, and how many bad samples were left out (data.bad_samples: skip).

    Raises BadSampleError, PipelineError.
    """
    sizes, bad = Sizes(), 0
    skip = found.spec is not None and found.spec.data.bad_samples == "skip"
    for sample in samples:
        of_one = Sizes()
        try:
            found.pipeline.run(sample, found.seed, 0, of_one)
        except BadSampleError:
            if not skip:
                raise
            bad += 1
            continue
        sizes.add(of_one)
    return sizes, bad


def operations(pipeline: Pipeline, sizes: Sizes | None = None) -> list[dict[str, Any]]:
    """One row per operation, in order. `mean_bytes_out` is None without `sizes`. Raises PipelineError."""
    most = storable(pipeline)
    rows = []
    for number, op in enumerate(pipeline.ops, 1):
        identity = op.identity()
        rows.append(
            {
                "number": number,
                "name": op.name,
                "field": op.field,
                "into": op.output,
                "takes": op.takes,
                "gives": op.gives,
                "random": op.random,
                "storable": number <= most,
                "not_storable": _why_not(pipeline, number, most),
                "call": op.call,
                "parameters": identity["parameters"],
                "files": identity["files"],
                "libraries": identity["libraries"],
                "fingerprint": pipeline.fingerprint(number),
                "codecs": _codecs(pipeline, number) if number <= most else [],
                "mean_bytes_out": None if sizes is None else sizes.mean(op.name),
            }
        )
    return rows


def _why_not(pipeline: Pipeline, number: int, most: int) -> dict[str, str] | None:
    if number <= most:
        return None
    return {"code": "random" if number == most + 1 else "behind_random", "op": pipeline.ops[most].name}


def _codecs(pipeline: Pipeline, number: int) -> list[str]:
    kinds = pipeline.kinds(number)
    is_image = any(kinds[field] == "image" for field in Prefix(pipeline, number).extensions)
    return [codec for codec in STORED_CODECS if is_image or codec not in _IMAGE_CODECS]
