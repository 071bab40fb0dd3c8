"""What a sample is after each operation of a pipeline, what the operations take, and what codecs make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any, cast

from cloud.storage.samples import Sample
from experiments.pipeline.codecs import Kind
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import StoredCodec, decode, encode, may_hold
from experiments.pipeline.trace import SampleTrace, size_of


@dataclass(frozen=True, slots=True)
class Coded:
    """Encoded bytes, and CPU seconds to encode and to decode. `held`: the codec can hold the values; otherwise the bytes
    are those of the values themselves."""

    size_bytes: int
    write_s: float
    read_s: float
    held: bool = True


@dataclass(frozen=True, slots=True)
class SampleSteps:
    """A sample on its way through m operations: payload bytes of the fields that any of them takes or makes."""

    key: str
    raw_bytes: int
    size_bytes: tuple[int, ...]  # after each operation
    op_s: tuple[float, ...]  # CPU seconds of each operation, of its thread alone
    coded: tuple[Coded, ...]  # in the order of `places`


def places(pipeline: Pipeline, codecs: Sequence[StoredCodec]) -> tuple[tuple[StoredCodec, int], ...]:
    """Where codecs may apply: after how many operations. PNG and WebP need an image there."""
    found: list[tuple[StoredCodec, int]] = []
    for codec in codecs:
        for ops in range(1, len(pipeline.ops) + 1):
            kinds = _made(pipeline, ops).values()
            if codec != "none" and may_hold(codec, kinds):
                found.append((codec, ops))
    return tuple(found)


def steps_of(
    pipeline: Pipeline,
    sample: Sample,
    seed: int,
    pass_number: int,
    where: Sequence[tuple[StoredCodec, int]] = (),
) -> SampleSteps:
    """Run all operations on a sample, and encode and decode its values at each of `where`.

    Random operations do what they do in pass `pass_number`. Raises BadSampleError, PipelineError, MemoryError, OSError.
    """
    fields = {field for op in pipeline.ops for field in (op.field, op.output)}
    raw = _payload(pipeline.start(sample), fields)
    trace = _Trace(pipeline, fields, where)
    pipeline.run(sample, seed, pass_number, trace)
    return SampleSteps(
        sample["__key__"],
        raw,
        tuple(trace.size_bytes),
        tuple(trace.op_s),
        tuple(trace.coded[place] for place in where),
    )


class _Trace(SampleTrace):
    """Notes each operation. What it does itself is not part of any operation's time."""

    __slots__ = ("_began_s", "_fields", "_pipeline", "_where", "coded", "op_s", "size_bytes")

    def __init__(
        self, pipeline: Pipeline, fields: set[str], where: Sequence[tuple[StoredCodec, int]]
    ) -> None:
        self._pipeline, self._fields, self._where = pipeline, fields, where
        self.size_bytes: list[int] = []
        self.op_s: list[float] = []
        self.coded: dict[tuple[StoredCodec, int], Coded] = {}
        self._began_s = thread_time()

    def op(self, name: str, item: Any) -> None:
        self.op_s.append(thread_time() - self._began_s)
        self.size_bytes.append(_payload(item, self._fields))
        done = len(self.op_s)
        for codec, ops in self._where:
            if ops == done:
                self.coded[codec, ops] = self._code(codec, item)
        self._began_s = thread_time()

    def _code(self, codec: StoredCodec, item: Mapping[str, Any]) -> Coded:
        kinds = _made(self._pipeline, len(self.op_s))
        others = _payload(item, self._fields - set(kinds))
        began_s = thread_time()
        try:
            encoded = {field: encode(item[field], kind, codec) for field, kind in kinds.items()}
        except ValueError:  # such as WebP and an image without colours
            return Coded(self.size_bytes[-1], 0.0, 0.0, held=False)
        written_s = thread_time()
        for field, data in encoded.items():
            decode(data, kinds[field], codec)
        return Coded(others + sum(map(len, encoded.values())), written_s - began_s, thread_time() - written_s)


def _made(pipeline: Pipeline, ops: int) -> dict[str, Kind]:
    """The fields that the first `ops` operations make, with their kinds."""
    kinds = pipeline.kinds(ops)
    return {op.output: kinds[op.output] for op in pipeline.ops[:ops]}


def _payload(item: Mapping[str, Any], fields: set[str]) -> int:
    return size_of(cast(Any, {field: item[field] for field in fields if field in item}))
