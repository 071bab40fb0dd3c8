"""Traces a torch DataLoader of a user's own script: `for batch in traced(DataLoader(...))`. Torch is not patched.

The worker's side wraps the loader's data set and collate function: it numbers its own batches, and sends that number with
the batch. The consumer's side wraps the iterator. When a batch arrives is known by a method that is replaced on that
iterator only.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from experiments.pipeline.trace import RECORDS, Recorder, TraceBuffer, TraceError, size_of
from experiments.pipeline.trace_format import NO_NUMBER, SUFFIX, Code, local_batch

_T = TypeVar("_T")


@dataclass(slots=True)
class _Fetch:
    """The batch that a thread is preprocessing."""

    buffer: TraceBuffer
    number: int  # of the thread's own batches
    start_ns: int
    samples: int = 0
    sample: int = NO_NUMBER  # index of the current one


class _Active(threading.local):
    fetch: _Fetch | None = None


_active = _Active()


class Steps:
    """Functions that are applied to a sample one after the other, like torchvision's Compose; each is timed in a trace.

    Without a trace they are only applied.
    """

    def __init__(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        self._functions = tuple(functions)
        names = [getattr(function, "__name__", type(function).__name__) for function in functions]
        self.names = tuple(
            f"{name} {names[:at].count(name) + 1}" if name in names[:at] else name
            for at, name in enumerate(names)
        )

    def __call__(self, value: Any) -> Any:
        """Apply the functions. Raises what they raise."""
        fetch = _active.fetch
        if fetch is None:
            for function in self._functions:
                value = function(value)
            return value
        buffer, batch = fetch.buffer, local_batch(fetch.number)
        names = [buffer.name_id(name) for name in self.names]
        buffer.mark()
        for name, function in zip(names, self._functions, strict=True):
            value = function(value)
            buffer.op(name, batch, fetch.sample, size_of(value))
        return value


def steps(*functions: Callable[[Any], Any]) -> Steps:
    """Declare a data set's transforms, so that each is timed: `transform=steps(decode, RandomCrop(224), to_array)`."""
    return Steps(functions)


def traced(
    loader: DataLoader[_T], folder: str | Path = "trace", *, vm: str = "", records: int = RECORDS
) -> Traced[_T]:
    """Return an iterable of the loader's batches that records a trace in `folder` (docs/trace.md).

    `vm` names this machine in the trace (default: its host name). `records` is the space of each thread in events of 40
    bytes; events beyond it are dropped and counted. Raises TraceError if the folder has a trace or cannot be written.
    """
    folder = Path(folder)
    if any(folder.glob(f"*{SUFFIX}")):
        raise TraceError(f"{folder} already has a trace; remove it, or name another folder")
    return Traced(loader, Recorder(folder, vm=vm, records=records))


class Traced(Generic[_T]):
    """Batches of a DataLoader, whose preprocessing, arrival and consumption are recorded."""

    def __init__(self, loader: DataLoader[_T], recorder: Recorder) -> None:
        """The loader stays as it is. Raises TraceError."""
        worker = _Worker(recorder)
        dataset = loader.dataset
        if any(base.__name__ in ("IterDataPipe", "MapDataPipe") for base in type(dataset).__mro__):
            raise TraceError(
                f"{type(dataset).__name__} is a DataPipe, which torch shares among workers by its type, so it cannot be traced; "
                "use a Dataset or an IterableDataset"
            )
        self._loader = copy.copy(loader)
        # Not by assignment, which a DataLoader refuses.
        self._loader.__dict__["dataset"] = (
            _Iterated(dataset, worker) if isinstance(dataset, IterableDataset) else _Indexed(dataset, worker)
        )
        self._loader.__dict__["collate_fn"] = _Collate(loader.collate_fn, worker)
        self._loader.__dict__["_iterator"] = None  # of the original, if its workers are persistent
        self._recorder = recorder
        self._next_number = 0

    def __len__(self) -> int:
        """The number of batches. Raises TypeError if the data set has none."""
        return len(self._loader)

    def __iter__(self) -> Iterator[_T]:
        """Yield the batches of one epoch. Raises what the DataLoader raises."""
        buffer, first = self._recorder.buffer(), self._next_number
        iterator = iter(self._loader)
        numbers: dict[tuple[int, int, int], int] = {}  # of batches that arrived, by their key

        def arrived(index: int, sent: _Sent) -> None:
            buffer.event(Code.ARRIVED, monotonic_ns(), 0, batch=first + index)
            numbers[sent.key] = first + index
            self._next_number = max(self._next_number, first + index + 1)

        watched = _watch_arrivals(iterator, arrived)
        consumed = 0
        try:
            while True:
                asked_ns = monotonic_ns()
                try:
                    sent: Any = next(iterator)
                except StopIteration:
                    return
                got_ns = monotonic_ns()
                number = numbers.pop(sent.key, first + consumed)
                consumed += 1
                self._next_number = max(self._next_number, number + 1)
                pid, tid, of_worker = sent.key
                buffer.event(Code.SENT, got_ns, 0, cpu_ns=tid, batch=number, sample=of_worker, size=pid)
                buffer.event(Code.WAIT, asked_ns, got_ns - asked_ns, batch=number)
                try:
                    yield sent.batch
                finally:
                    buffer.event(Code.CONSUMED, got_ns, monotonic_ns() - got_ns, batch=number)
        finally:
            if watched:
                del iterator.__dict__["_try_get_data"]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a phase of the training: `with batches.phase("forward"): ...`."""
        buffer = self._recorder.buffer()
        named = buffer.name_id(name)
        start_ns = monotonic_ns()
        try:
            yield
        finally:
            buffer.event(Code.PHASE, start_ns, monotonic_ns() - start_ns, name=named)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch on its way from a worker to the consumer. `key`: process, thread, number of its own batches."""

    batch: Any
    key: tuple[int, int, int]

    def pin_memory(self, device: str | None = None) -> _Sent:
        """Pin the batch; the DataLoader calls this method of values whose type it does not know."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return _Sent(pin_memory(self.batch, device), self.key)


class _Worker:
    """What the data set and the collate function of one process share. The numbers are those of a thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._count = threading.local()

    @contextmanager
    def fetch(self, begun: _Fetch | None = None) -> Iterator[_Fetch]:
        """Fetch samples of the next batch, or go on with one that was begun. An error ends the batch."""
        number = getattr(self._count, "batches", 0)
        fetch = begun or _Fetch(self._recorder.buffer(), number, monotonic_ns())
        self._count.batches = fetch.number + 1  # also of a batch that is never finished
        _active.fetch = fetch
        try:
            yield fetch
        except BaseException:
            _active.fetch = None
            raise

    def end(self) -> None:
        _active.fetch = None

    def __getstate__(self) -> Recorder:
        return self._recorder

    def __setstate__(self, recorder: Recorder) -> None:
        self.__init__(recorder)


class _Wrapped:
    """A data set that passes on what it does not trace, for `worker_init_fn` and the like."""

    def __init__(self, dataset: Any, worker: _Worker) -> None:
        self._dataset, self._worker = dataset, worker

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_dataset", "_worker"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_dataset", "_worker"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._dataset, name, value)


class _Indexed(_Wrapped):
    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with self._worker.fetch() as fetch:
            fetch.samples = len(indices)
            together = getattr(self._dataset, "__getitems__", None)
            if together:
                return together(indices)
            items = list[Any]()
            for index in indices:
                fetch.sample = _sample(index)
                items.append(self._dataset[index])
            return items

    def __getitem__(self, index: Any) -> Any:
        """Of a loader without batches: the data set makes them itself, or they are of one sample."""
        with self._worker.fetch() as fetch:
            fetch.sample = _sample(index)
            fetch.samples = len(index) if isinstance(index, list | tuple) else 1
            return self._dataset[index]


class _Iterated(_Wrapped):
    def __iter__(self) -> Iterator[Any]:
        _active.fetch = None
        iterator = iter(self._dataset)
        while True:
            with self._worker.fetch(_active.fetch) as fetch:
                try:
                    item = next(iterator)
                except StopIteration:
                    return  # what was fetched before is collated next
                fetch.samples += 1
            yield item


class _Collate:
    def __init__(self, collate: Callable[[Any], Any], worker: _Worker) -> None:
        self._collate, self._worker = collate, worker

    def __call__(self, items: Any) -> _Sent:
        fetch = _active.fetch
        assert fetch is not None
        start_ns, start_cpu_ns = monotonic_ns(), thread_time_ns()
        number = local_batch(fetch.number)
        buffer = fetch.buffer
        buffer.event(
            Code.FETCH, fetch.start_ns, start_ns - fetch.start_ns, batch=number, sample=fetch.samples
        )
        batch = self._collate(items)
        end_ns, cpu_ns = monotonic_ns(), thread_time_ns() - start_cpu_ns
        buffer.event(
            Code.COLLATE, start_ns, end_ns - start_ns, cpu_ns=cpu_ns, batch=number, size=size_of(batch)
        )
        self._worker.end()
        return _Sent(batch, (os.getpid(), threading.get_native_id(), fetch.number))


def _sample(index: Any) -> int:
    return index if type(index) is int and 0 <= index < NO_NUMBER else NO_NUMBER


def _watch_arrivals(iterator: Any, arrived: Callable[[int, _Sent], None]) -> bool:
    """Call `arrived` with each batch that `iterator` receives from its processes, and its number in the epoch.

    Returns whether that is possible: not without processes, and not if a version of torch has no such method.
    """
    receive = getattr(iterator, "_try_get_data", None)
    if receive is None:
        return False

    def watched(*args: Any, **keywords: Any) -> Any:
        found = receive(*args, **keywords)
        if found[0] and isinstance(found[1][1], _Sent):
            arrived(*found[1])
        return found

    iterator._try_get_data = watched
    return True
