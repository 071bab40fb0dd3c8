"""Runs a pipeline on samples in threads or processes, with a bounded read-ahead."""

from __future__ import annotations

import atexit
import os
import pickle
import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Any, Literal, cast

import torch
from torch.utils.data import DataLoader, Dataset

from cloud.storage.samples import Sample
from experiments.peer.config import PeerConfigError
from experiments.peer.processes import die_with_parent
from experiments.pipeline.errors import BadSampleError, PipelineError, describe_error
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.pipeline.trace import Recorder, SampleTrace, TraceError

_CHUNK_SAMPLES = 8  # sent to a process at a time
_CHUNKS_AHEAD = 2  # per process
_AHEAD_SAMPLES = _CHUNK_SAMPLES * _CHUNKS_AHEAD  # per worker, read but not yet delivered
_MAX_WORKERS = 256


class WorkerEndedError(Exception):
    """A worker process ended before its result arrived."""


@dataclass(frozen=True)
class Workers:
    """Who decodes: `count` threads or processes, which deliver in the order of reading or as they finish."""

    kind: Literal["thread", "process"] = "thread"
    count: int = 1
    in_order: bool = True

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Workers:
        """Parse the peer's config. Raises PeerConfigError."""
        kind, count = settings.get("kind", "thread"), settings.get("count", 1)
        in_order = settings.get("in_order", True)
        if kind not in ("thread", "process"):
            raise PeerConfigError(f"workers.kind: {kind!r} is not one of thread, process")
        if type(count) is not int or not 1 <= count <= _MAX_WORKERS:
            raise PeerConfigError(f"workers.count: {count!r} is not a whole number from 1 to {_MAX_WORKERS}")
        if type(in_order) is not bool:
            raise PeerConfigError(f"workers.in_order: {in_order!r} is not true or false")
        return cls(kind, count, in_order)


@dataclass(frozen=True, slots=True)
class Read:
    """A sample as it was read: the `number`-th of its reader, in pass `pass_number` over the data."""

    number: int
    sample: Sample
    pass_number: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """The item of the sample with this number, or what is wrong with the sample."""

    number: int
    result: Item | BadSampleError


@dataclass(frozen=True)
class Decoder:
    """Runs `pipeline` on samples, and records each operation if there is a `trace`. Processes get a copy of it."""

    pipeline: Pipeline
    seed: int
    trace: Recorder | None = None

    def __call__(self, read: Read) -> Decoded:
        """Decode one sample. Raises PipelineError."""
        trace = None if self.trace is None else SampleTrace(self.trace.buffer(), read.number)
        try:
            item = self.pipeline.run(read.sample, self.seed, read.pass_number, trace)
            return Decoded(read.number, item)
        except BadSampleError as error:
            return Decoded(read.number, error)
        except TraceError as error:  # more names of operations than a file holds
            raise PipelineError(f"data.trace: {error}") from error


def decoded(reads: Iterator[Read], decoder: Decoder, workers: Workers) -> Iterator[Decoded]:
    """Decode all `reads`, which must not raise.

    They are read in the caller's thread, at most `_AHEAD_SAMPLES` per worker before they are delivered. Closing the
    iterator ends the workers. Raises PipelineError, WorkerEndedError.
    """
    if workers.kind == "process":
        return _in_processes(reads, decoder, workers)
    if workers.count == 1:
        return map(decoder, reads)
    return _in_threads(reads, decoder, workers)


def _in_threads(reads: Iterator[Read], decoder: Decoder, workers: Workers) -> Iterator[Decoded]:
    pool = ThreadPoolExecutor(workers.count, thread_name_prefix="decode")
    running: deque[Future[Decoded]] = deque()  # in the order of reading
    finished: queue.SimpleQueue[Future[Decoded]] = queue.SimpleQueue()
    count = 0

    def take() -> Decoded:
        nonlocal count
        count -= 1
        return (running.popleft() if workers.in_order else finished.get()).result()

    try:
        for read in reads:
            future = pool.submit(decoder, read)
            count += 1
            if workers.in_order:
                running.append(future)
            else:
                future.add_done_callback(finished.put)
            if count >= workers.count * _AHEAD_SAMPLES:
                yield take()
        while count:
            yield take()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Chunks(Dataset[bytes]):
    """A data set whose index is a chunk of samples: torch's DataLoader sends the indices to its processes."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __getitem__(self, index: list[Read]) -> bytes:
        """Pickled here, since an error of the DataLoader's own pickling would be lost in its thread."""
        try:
            return pickle.dumps([self._decoder(read) for read in index], pickle.HIGHEST_PROTOCOL)
        except (PipelineError, MemoryError, OSError) as error:
            return pickle.dumps(error)
        except SystemExit as error:
            return pickle.dumps(
                PipelineError(f"pipeline {self._decoder.pipeline.name}: {describe_error(error)}")
            )
        except Exception as error:  # noqa: BLE001 - raised in the peer
            name = self._decoder.pipeline.name
            text = (
                f"pipeline {name}: an item cannot be sent between processes ({type(error).__name__}: {error})"
            )
            return pickle.dumps(PipelineError(f"{text}; use data.workers.kind: thread"))


def _in_processes(reads: Iterator[Read], decoder: Decoder, workers: Workers) -> Iterator[Decoded]:
    chunks = iter(lambda: list(islice(reads, _CHUNK_SAMPLES)), [])
    loader: DataLoader[bytes] = DataLoader(
        _Chunks(decoder),
        batch_size=None,
        sampler=cast(Any, chunks),
        num_workers=workers.count,
        prefetch_factor=_CHUNKS_AHEAD,
        in_order=workers.in_order,
        collate_fn=cast(Any, _unchanged),
        # new programs, because a fork copies locks that Hivemind's threads may hold
        multiprocessing_context="spawn",
        worker_init_fn=partial(_in_worker, os.getpid()),
        generator=torch.Generator(),  # the default would draw from the model's random numbers
    )
    results: Any = iter(loader)
    # Workers ignore SIGTERM, and Python's exit would wait for those of an iterator that was not closed.
    at_exit = partial(_kill, results._workers)
    atexit.register(at_exit)
    try:
        while True:
            try:
                data = next(results)
            except StopIteration:
                return
            except RuntimeError as error:  # of the DataLoader
                raise _ended(str(error)) from error
            # torch notices a dead process only while no other one delivers, and would wait for its samples forever
            if dead := [worker.pid for worker in results._workers if not worker.is_alive()]:
                raise _ended(f"process {dead[0]} exited")
            found = pickle.loads(data)
            if isinstance(found, Exception):
                raise found
            yield from found
    finally:
        atexit.unregister(at_exit)
        del results  # ends the processes, also if the traceback of an error keeps this frame


def _ended(why: str) -> WorkerEndedError:
    return WorkerEndedError(
        f"a process that decodes samples ended ({why}); the machine may have too little memory: lower data.workers.count"
    )


def _kill(workers: Iterable[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()


def _unchanged(data: bytes) -> bytes:
    return data


def _in_worker(parent: int, _number: int) -> None:
    die_with_parent(parent)
