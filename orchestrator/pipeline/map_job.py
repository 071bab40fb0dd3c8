"""What the process that `orch pipeline map` measures is to do, what it answers, and the files of both in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.pipeline.pipeline import Pipeline

JOB = "job.pickle"
ANSWER = "answer.json"
READY = "ready"
GO = "go"
TRACE = "trace"
ALONE_TRACE = "trace-alone"
DUMPS = "callgrind.out"


@dataclass(frozen=True)
class MapJob:
    """Run `pipeline` on `samples`. Exactly: once each, with a dump for each operation; else for `seconds`."""

    pipeline: Pipeline
    samples: tuple[dict[str, Any], ...]
    seed: int
    exact: bool
    seconds: float
    interval_ns: float  # between two samples of the profiler
    alone: bool  # run each operation alone, too (LotusMap)


# The answer is a JSON object: {"error": sentence}, or {"start_ns", "end_ns", "calls", "ops"} and, with `alone`,
# "alone": {op: {"runs", "function_ns"}}.
