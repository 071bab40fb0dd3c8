"""The process that `orch pipeline map` measures: runs a pipeline's operations under a profiler.

`python -m orchestrator.pipeline.map_child`, in the folder of its job.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np

from analysis.pipeline.lotus_map import CALLS, SHORTEST, runs
from cloud.durable_file import write_durably
from experiments.pipeline.errors import BadSampleError, PipelineError, describe_error
from experiments.pipeline.pipeline import Item, apply
from experiments.pipeline.randomness import Randomness
from experiments.pipeline.trace import Recorder, SampleTrace, TraceError
from experiments.pipeline.trace_format import Code
from orchestrator.pipeline.map_job import ALONE_TRACE, ANSWER, GO, JOB, READY, TRACE, MapJob

_LEAST_RECORDS = 100_000
_MOST_RECORDS = 2_000_000  # 80 MB
_MOST_RUNS = 50_000  # of an operation alone
_INPUTS = 8  # samples on which an operation runs alone
_POLL_S = 0.02


def main() -> None:
    """Do the job of the current folder and write the answer. Ends when standard input does: its parent has ended."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    job: MapJob = pickle.loads(Path(JOB).read_bytes())
    try:
        answer = _exact(job) if job.exact else _sampled(job)
    except BadSampleError as error:
        answer = {"error": f"{error.where}; correct the sample, or map other ones"}
    except (PipelineError, TraceError) as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": "the memory does not suffice for the samples; use fewer with --samples"}
    write_durably(Path(ANSWER), json.dumps(answer).encode())


def _follow_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def _sampled(job: MapJob) -> dict[str, Any]:
    per_sample_ns = _warm_up(job)
    ops = len(job.pipeline.ops)
    records = int(4 * job.seconds * 1e9 / per_sample_ns * ops) + ops  # the warm-up may have been slow
    records = min(_MOST_RECORDS, max(_LEAST_RECORDS, records))
    recorder = Recorder(Path(TRACE), records=records)
    buffer = recorder.buffer()
    gc.collect()
    start_ns = monotonic_ns()
    end_ns, calls = start_ns + int(job.seconds * 1e9), 0
    while calls == 0 or (monotonic_ns() < end_ns and (calls + 1) * ops <= records):
        sample, passed = job.samples[calls % len(job.samples)], calls // len(job.samples)
        job.pipeline.run(sample, job.seed, passed, SampleTrace(buffer, calls))
        calls += 1
    answer: dict[str, Any] = {"start_ns": start_ns, "end_ns": monotonic_ns(), "calls": calls}
    if job.alone:
        answer["alone"] = _alone(job)
    return answer


def _warm_up(job: MapJob) -> float:
    """Run each sample twice; returns nanoseconds a sample, the second time."""
    start_ns = monotonic_ns()
    for _ in range(2):
        start_ns = monotonic_ns()
        for sample in job.samples:
            job.pipeline.run(sample, job.seed, 0)
    return max(1.0, (monotonic_ns() - start_ns) / len(job.samples))


def _alone(job: MapJob) -> dict[str, Any]:
    """Run each operation alone, as LotusMap does; the last call of each run is recorded as a phase with its name."""
    found: dict[str, Any] = {}
    buffer = None
    for number, op in enumerate(job.pipeline.ops):
        inputs = [(sample, _before(job, sample, number)[op.field]) for sample in job.samples[:_INPUTS]]
        start_ns = monotonic_ns()
        for sample, value in inputs:
            apply(op, value, Randomness(job.seed, 0, sample["__key__"]))
        function_ns = max(1.0, SHORTEST * (monotonic_ns() - start_ns) / len(inputs))
        n = min(_MOST_RUNS, runs(function_ns, job.interval_ns))
        if buffer is None:
            buffer = Recorder(Path(ALONE_TRACE), records=_MOST_RUNS * len(job.pipeline.ops)).buffer()
        name = buffer.name_id(op.name)
        for run in range(n):
            sample, value = inputs[run % len(inputs)]
            randomness = Randomness(job.seed, run, sample["__key__"])
            for _ in range(CALLS - 1):
                apply(op, value, randomness)
            start_ns = monotonic_ns()
            apply(op, value, randomness)
            buffer.event(Code.PHASE, start_ns, monotonic_ns() - start_ns, name=name)
        found[op.name] = {"runs": n, "function_ns": function_ns}
    return found


def _before(job: MapJob, sample: dict[str, Any], ops: int) -> Item:
    """The sample after the first `ops` operations, which are known to succeed."""
    item = job.pipeline.start(sample)
    randomness = Randomness(job.seed, 0, sample["__key__"])
    for op in job.pipeline.ops[:ops]:
        item[op.output] = apply(op, item[op.field], randomness)
    return item


class _Made(Randomness):
    """The randomness of a sample, with a generator for each random operation made in advance."""

    def __init__(self, job: MapJob, sample: dict[str, Any]) -> None:
        super().__init__(job.seed, 0, sample["__key__"])
        made = {op.name: super(_Made, self).generator(op.name) for op in job.pipeline.ops if op.random}
        object.__setattr__(self, "_generators", made)

    def generator(self, op: str) -> np.random.Generator:
        """Return the generator of the operation; it can be used once."""
        return self._generators[op]  # pyright: ignore[reportAttributeAccessIssue]


def _exact(job: MapJob) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    toggle, dump = torch._C._valgrind_toggle, torch._C._valgrind_toggle_and_dump_stats
    _warm_up(job)
    Path(READY).touch()
    while not os.access(GO, os.F_OK):  # allocates nothing, however often it runs
        time.sleep(_POLL_S)
    # Outside the operations: numpy reads the system's entropy for each generator, and then does not use it.
    made = [_Made(job, sample) for sample in job.samples]
    gc.collect()
    gc.disable()  # it runs after a number of allocations, in whichever operation that is
    start_ns = monotonic_ns()
    for sample, randomness in zip(job.samples, made, strict=True):
        item = job.pipeline.start(sample)
        for op in job.pipeline.ops:
            value = item[op.field]
            toggle()
            result = apply(op, value, randomness)
            dump()
            item[op.output] = result
    return {"start_ns": start_ns, "end_ns": monotonic_ns(), "calls": len(job.samples)}


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 - the reader of the answer reports it
        write_durably(Path(ANSWER), json.dumps({"error": describe_error(error)}).encode())
        sys.exit(1)
