"""A task's batches: the samples of a share of the shards, decoded by a pipeline in workers and collated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import webdataset.tariterators  # noqa: F401 - read_shard needs it: a warm host imports it once for all peers

from cloud.storage.errors import CorruptShardError
from cloud.storage.samples import Cursor, SampleReader, read_shard
from experiments.peer.training.bad_samples import BadSamples
from experiments.peer.training.decoding import Decoded, Decoder, Read, Workers, decoded
from experiments.peer.training.input_trace import SourceTrace
from experiments.pipeline.errors import BadSampleError
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.protocol import Batch

SHUFFLE_SAMPLES = 256
_HELDOUT_SEED = 0  # so that all runs are evaluated on the same items

Collate = Callable[[Sequence[Item]], Batch]
OpenShard = Callable[[str], BinaryIO]


@dataclass(frozen=True, slots=True)
class Span:
    """Samples `first` up to before `end` of `shard`, in the order in which every reader reads it in this pass."""

    pass_number: int
    shard: str
    first: int
    end: int


@dataclass(frozen=True)
class Loaded:
    """A batch and where it comes from."""

    batch: Batch
    samples: tuple[tuple[str, str], ...]  # (shard, key), in the batches' order
    cursor: Cursor  # a reader that starts here reads every sample that has not been delivered
    others: tuple[Batch, ...] = ()  # of the VM's other accelerators, as many samples each
    spans: tuple[Span, ...] = ()  # where all its samples are in their shards

    def samples_of(self, rank: int) -> tuple[tuple[str, str], ...]:
        """(shard, key) of the samples of one accelerator."""
        each = len(self.samples) // (1 + len(self.others))
        return self.samples[rank * each : (rank + 1) * each]


class TaskSource:
    """Batches from a share of the shards (initially `shards`), in an order determined by the seed.

    The samples of a batch, and the items made of them, depend on seed, share and cursor only; with workers that do not
    deliver in order, the order does not. `next_batch` must be called in one thread.
    """

    def __init__(
        self,
        shards: Sequence[str],
        open_shard: OpenShard,
        decoder: Decoder,
        collate: Collate,
        workers: Workers,
        bad_samples: BadSamples,
        *,
        shuffle: int = SHUFFLE_SAMPLES,
        cursor: Cursor | None = None,
        others: int = 0,
        collate_to_send: Collate | None = None,
        streams: int = 1,
        trace: SourceTrace | None = None,
    ) -> None:
        """`others`: accelerators of the VM besides this one, whose batches `collate_to_send` makes. `streams`: shards
        that are downloaded at once."""
        self._others, self._collate_to_send = others, collate_to_send or collate
        self._reader = SampleReader(
            shards, open_shard, seed=decoder.seed, shuffle=shuffle, cursor=cursor, streams=streams
        )
        self._collate, self._bad_samples = collate, bad_samples
        self._trace = trace
        self._cursor = self._reader.cursor
        self._error: Exception | None = None
        self._places: dict[int, tuple[str, str, Cursor]] = {}  # by number, until all before are delivered
        self._delivered: set[int] = set()
        self._first = 0  # number of the first sample that has not been delivered
        self._decoded = decoded(self._reads(), decoder, workers)

    def next_batch(self, samples: int) -> Loaded:
        """Return a batch of the next `samples` good ones, shared evenly among the VM's accelerators.

        Raises StorageError, BadSampleError, PipelineError, WorkerEndedError and what `collate` raises.
        """
        items: list[Item] = []
        places: list[tuple[str, str]] = []
        spans: list[tuple[int, str, list[int]]] = []  # pass, shard, first and end
        numbers: list[int] = []
        if self._trace is not None:
            self._trace.begin()
        while len(items) < samples:
            found = self._next()
            shard, key, at = self._deliver(found.number)
            if isinstance(found.result, BadSampleError):
                self._bad_samples.bad(found.result, at.epoch)
                continue
            self._bad_samples.good(at.epoch)
            items.append(found.result)
            numbers.append(found.number)
            places.append((shard, key))
            if spans and spans[-1][2][1] == at.samples - 1 and spans[-1][:2] == (at.epoch, shard):
                spans[-1][2][1] = at.samples
            else:
                spans.append((at.epoch, shard, [at.samples - 1, at.samples]))
        self._bad_samples.report()
        if self._trace is not None:
            self._trace.fetched(numbers)
        each = samples // (1 + self._others)
        parts = [items[first : first + each] for first in range(0, samples, each)]
        others = tuple(map(self._collate_to_send, parts[1:]))
        batch = self._collate(parts[0])
        if self._trace is not None:
            self._trace.collated((batch, others))
        return Loaded(
            batch,
            tuple(places),
            self._cursor,
            others,
            tuple(Span(p, s, a, b) for p, s, (a, b) in spans),
        )

    def shard_samples(self) -> Mapping[str, int]:
        """Number of samples, bad ones included, of each shard that has been read to its end. Thread-safe."""
        return self._reader.shard_samples

    def set_shards(self, shards: Sequence[str]) -> None:
        """Change the share; takes effect after the shard being read."""
        self._reader.set_shards(shards)

    def start_at(self, cursor: Cursor) -> None:
        """Change the position before the first batch is read. Raises RuntimeError afterwards."""
        if self._first or self._places:
            raise RuntimeError("the position in the data cannot be changed once samples have been read")
        self._reader.start_at(cursor)
        self._cursor = cursor

    def close(self) -> None:
        """End the workers and close the shard being read."""
        if isinstance(self._decoded, Generator):
            self._decoded.close()
        self._reader.close()

    def _next(self) -> Decoded:
        try:
            return next(self._decoded)
        except StopIteration:
            assert self._error is not None  # the reader is endless
            raise self._error from None

    def _reads(self) -> Iterator[Read]:
        """Read until an error, which is raised once everything read before it has been delivered."""
        number = 0
        while True:
            try:
                sample = next(self._reader)
            except Exception as error:  # noqa: BLE001 - raised by `next_batch`
                self._error = error
                return
            cursor = self._reader.cursor
            self._places[number] = sample["__url__"], sample["__key__"], cursor
            yield Read(number, sample, cursor.epoch)
            number += 1

    def _deliver(self, number: int) -> tuple[str, str, Cursor]:
        """Move the cursor after the longest sequence of delivered samples. Returns shard, key and the cursor after this one."""
        shard, key, at = self._places[number]
        self._delivered.add(number)
        while self._first in self._delivered:
            self._delivered.remove(self._first)
            self._cursor = self._places.pop(self._first)[2]
            self._first += 1
        return shard, key, at


class HeldOut:
    """The held-out samples, read from the store for each evaluation and decoded in order as in pass 0.

    Random operations draw the same numbers in each run. `workers`: processes are replaced by threads, since an evaluation
    is too short to start them.
    """

    def __init__(
        self,
        shards: Sequence[str],
        open_shard: OpenShard,
        pipeline: Pipeline,
        collate: Collate,
        workers: Workers,
        bad_samples: Callable[[], BadSamples],
        samples_per_batch: int,
    ) -> None:
        """`bad_samples`: makes a counter for one reading."""
        self._shards, self._open_shard = tuple(shards), open_shard
        self._decoder = Decoder(pipeline, _HELDOUT_SEED)
        self._workers = Workers("thread", workers.count, in_order=True)
        self._collate, self._bad_samples = collate, bad_samples
        self._samples_per_batch = samples_per_batch
        self.samples = 0  # in the batches of the last reading

    def check(self) -> None:
        """Read and collate the first good sample, so that wrong data is found before the training.

        Raises what `batches` raises.
        """
        items = self._items(Workers(), self._bad_samples())
        self._collate([next(items)])
        items.close()

    def batches(self) -> Generator[Batch, None, None]:
        """Yield all batches. Raises StorageError, BadSampleError, PipelineError and what `collate` raises."""
        self.samples = 0
        items = list[Item]()
        bad = self._bad_samples()
        for item in self._items(self._workers, bad):
            items.append(item)
            if len(items) == self._samples_per_batch:
                yield self._batch(items)
                items = []
        if items:
            yield self._batch(items)
        bad.report()

    def _batch(self, items: list[Item]) -> Batch:
        self.samples += len(items)
        return self._collate(items)

    def _items(self, workers: Workers, bad: BadSamples) -> Generator[Item, None, None]:
        errors = list[Exception]()
        reads = self._reads(errors)
        for found in decoded(reads, self._decoder, workers):
            if isinstance(found.result, BadSampleError):
                bad.bad(found.result)
                continue
            bad.good()
            yield found.result
        for error in errors:
            raise error
        bad.check_any_good()

    def _reads(self, errors: list[Exception]) -> Iterator[Read]:
        number = 0
        try:
            for shard in self._shards:
                before = number
                for sample in read_shard(shard, self._open_shard(shard)):
                    yield Read(number, sample, 0)
                    number += 1
                if number == before:
                    raise CorruptShardError(shard, 0, "the tar contains no samples")
        except Exception as error:  # noqa: BLE001 - raised after the items read before it
            errors.append(error)
