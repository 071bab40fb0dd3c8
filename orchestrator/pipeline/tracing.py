"""Record the trace of an input that is open, as a peer reads it, with a consumer that only takes batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.pipeline.merge import read_trace
from analysis.pipeline.records import Trace
from analysis.pipeline.window import window

if TYPE_CHECKING:
    from experiments.peer.training.bad_samples import LeftOut
    from experiments.peer.training.decoding import Workers
    from orchestrator.pipeline.opened import OpenInput

WARM_UP = 2  # batches before those that are counted: workers start, connections open, modules are imported
_AHEAD_BATCHES = 8  # more than a peer's queue and thread hold
_AHEAD_SAMPLES = 16  # per worker
_MOST_RECORDS = 500_000  # a thread, as of a peer: 20 MB


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace of `trace.batches` batches with `workers`. `bad_samples` were left out, those of the warm-up included."""

    workers: Workers
    streams: int
    trace: Trace
    bad_samples: int


def record(
    found: OpenInput,
    workers: Workers,
    streams: int,
    batches: int,
    progress: Callable[[Callable[[], str]], None],
) -> Recorded:
    """Read WARM_UP batches and then `batches`, and return the trace of the latter. Its VM has the name of the workers.

    Raises StorageError, BadSampleError, PipelineError, WorkerEndedError, TraceError, and what the task's collate raises.
    """
    from experiments.peer.training.bad_samples import BadSamples
    from experiments.peer.training.batches import Batches
    from experiments.peer.training.decoding import Decoder
    from experiments.peer.training.input_trace import ConsumerTrace, SourceTrace
    from experiments.peer.training.loader import TaskSource
    from experiments.pipeline.trace import Recorder

    bad = list[int]()

    def left_out(told: LeftOut) -> None:
        bad.append(told.count)

    name = f"{workers.count} worker{'' if workers.count == 1 else 's'}"
    all_batches = WARM_UP + batches
    samples = (all_batches + _AHEAD_BATCHES) * found.batch_size + _AHEAD_SAMPLES * workers.count
    records = min(_MOST_RECORDS, samples * (len(found.pipeline.ops) + 2) + 1000)
    recorder = Recorder(found.folder / f"trace-{workers.count}", vm=name, records=records)
    source = TaskSource(
        found.shards,
        found.opener.open,
        Decoder(found.pipeline, found.seed, recorder),
        found.collate,
        workers,
        BadSamples("fail" if found.spec is None else found.spec.data.bad_samples, left_out),
        streams=streams,
        trace=SourceTrace(recorder),
    )
    reading = Batches(source, found.batch_size, ConsumerTrace(recorder))
    reading.start()
    try:
        for number in range(all_batches + 1):  # a batch is consumed when the next one is asked for
            reading.next()
            progress(lambda number=number: f"{name}: batch {min(number + 1, all_batches)} of {all_batches}")
    finally:
        reading.close(10.0)
    trace = window(read_trace(recorder.folder), WARM_UP, all_batches)
    return Recorded(workers, streams, trace, bad[-1] if bad else 0)
