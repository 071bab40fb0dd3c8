"""A pass over items that are kept in memory: only what follows the deterministic operations runs each time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from cloud.storage.samples import Sample
from experiments.peer.training.bad_samples import BadSamples
from experiments.peer.training.decoding import Decoder, Read, Workers, decoded
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.pipeline.stored import storable
from orchestrator.pipeline.good_samples import of_good


def item_bytes(item: Item) -> int:
    """Memory that an item's values take, without the objects around them."""
    return sum(map(_value_bytes, item.values()))


def kept(value: Any) -> Any:
    """The operation that takes a kept value."""
    return value


def deterministic(pipeline: Pipeline) -> Pipeline:
    """The operations before the first random one."""
    return Pipeline(pipeline.name, pipeline.fields, pipeline.ops[: storable(pipeline)])


class MemoryCache:
    """The items of `samples` after the pipeline's deterministic operations, and endless passes over them."""

    def __init__(
        self, pipeline: Pipeline, samples: Iterable[Sample], seed: int, bad_samples: BadSamples
    ) -> None:
        """Raises BadSampleError, PipelineError, MemoryError."""
        first = deterministic(pipeline)
        kinds = first.kinds()
        self._bad_samples = bad_samples
        self._items: list[Sample] = []
        self.size_bytes = 0
        run = lambda sample: (sample, first.run(sample, seed, 0))  # noqa: E731
        for sample, item in of_good(samples, run, bad_samples):
            self.size_bytes += item_bytes(item)
            self._items.append({**item, "__key__": sample["__key__"], "__url__": sample["__url__"]})
        load = tuple(
            Op(f"kept {field}", f"{__name__}:kept", field, "bytes", kind)
            for field, kind in kinds.items()
            if kind != "bytes"
        )
        rest = pipeline.ops[len(first.ops) :]
        self._pipeline = Pipeline(pipeline.name, {field: (field,) for field in kinds}, (*load, *rest))
        self._seed = seed

    def __len__(self) -> int:
        return len(self._items)

    def items(self, workers: Workers) -> Iterator[Item]:
        """Endless passes, each in an order of its own. Raises BadSampleError, PipelineError, WorkerEndedError."""
        for found in decoded(self._reads(), Decoder(self._pipeline, self._seed), workers):
            if isinstance(found.result, Exception):
                self._bad_samples.bad(found.result)
                continue
            self._bad_samples.good()
            yield found.result

    def _reads(self) -> Iterator[Read]:
        numbers = count()
        for pass_number in count():
            order: Sequence[Sample] = random.Random(f"{self._seed}-{pass_number}").sample(
                self._items, len(self._items)
            )
            for sample in order:
                yield Read(next(numbers), sample, pass_number)


def _value_bytes(value: Any) -> int:
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "getbands"):
        return value.width * value.height * len(value.getbands())
    return len(value) if isinstance(value, bytes | str) else 8
