"""What a peer records of its input pipeline (`data.trace`): batches where they are made and where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from typing import Any

from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.pipeline.trace import Recorder, TraceError, size_of
from experiments.pipeline.trace_format import NO_NUMBER, Code

_RECORDS = 500_000  # 20 MB a thread: 100,000 samples of 5 operations
_TRACES = ("off", "batches", "ops")


def input_recorder(config: PeerConfig, folder: Path) -> Recorder | None:
    """Return the recorder of this peer, which writes to `folder`/trace; None without a trace. Raises PeerConfigError.

    A thread whose file cannot be written later, as on a full disk, is not traced; training goes on.
    """
    if config.trace not in _TRACES:
        raise PeerConfigError(f"trace: {config.trace!r} is not one of {', '.join(_TRACES)}")
    if config.trace == "off":
        return None
    try:
        return Recorder(folder / "trace", vm=config.vm, records=_RECORDS, strict=False)
    except TraceError as error:
        raise PeerConfigError(f"data.trace: {config.trace}: {error}") from error


class SourceTrace:
    """The batches of a source, which one thread makes. Numbers of samples are those of the reader."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._batch = recorder, 0
        self._start_ns = self._collate_ns = self._collate_cpu_ns = 0

    def begin(self) -> None:
        """Begin the next batch, or the same one again after an error."""
        self._start_ns = monotonic_ns()

    def fetched(self, numbers: Sequence[int]) -> None:
        """All samples of the batch are there: those with these numbers. Collating begins."""
        now_ns, buffer = monotonic_ns(), self._recorder.buffer()
        buffer.event(
            Code.FETCH, self._start_ns, now_ns - self._start_ns, batch=self._batch, sample=len(numbers)
        )
        for first, count in runs(numbers):
            buffer.event(Code.SAMPLES, now_ns, 0, batch=self._batch, sample=first % NO_NUMBER, size=count)
        self._collate_ns, self._collate_cpu_ns = monotonic_ns(), thread_time_ns()

    def collated(self, batch: Any) -> None:
        """The batch is ready."""
        wall_ns, cpu_ns = monotonic_ns() - self._collate_ns, thread_time_ns() - self._collate_cpu_ns
        self._recorder.buffer().event(
            Code.COLLATE, self._collate_ns, wall_ns, cpu_ns=cpu_ns, batch=self._batch, size=size_of(batch)
        )
        self._batch += 1


class ConsumerTrace:
    """The same batches in the training thread, and their arrival in its queue, which the source's thread records."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._arrived = self._asked_for = 0  # numbers of the next batches
        self._asked_ns = self._got_ns = 0

    def arrived(self) -> None:
        """The next batch is in the queue."""
        self._recorder.buffer().event(Code.ARRIVED, monotonic_ns(), 0, batch=self._arrived)
        self._arrived += 1

    def asked(self) -> None:
        """The training asks for the next batch, and so has used the last one."""
        self._asked_ns = monotonic_ns()
        if self._asked_for:
            self._recorder.buffer().event(
                Code.CONSUMED, self._got_ns, self._asked_ns - self._got_ns, batch=self._asked_for - 1
            )

    def got(self) -> None:
        """The training has the batch."""
        self._got_ns = monotonic_ns()
        self._recorder.buffer().event(
            Code.WAIT, self._asked_ns, self._got_ns - self._asked_ns, batch=self._asked_for
        )
        self._asked_for += 1

    def phase(self, name: str, began_s: float, ended_s: float) -> None:
        """A phase of a training step has ended. Linux measures `time.perf_counter` on the clock of the trace."""
        buffer = self._recorder.buffer()
        start_ns = round(began_s * 1e9)
        buffer.event(Code.PHASE, start_ns, round(ended_s * 1e9) - start_ns, name=buffer.name_id(name))


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (first, count), in order."""
    found = list[tuple[int, int]]()
    for number in sorted(numbers):
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found
