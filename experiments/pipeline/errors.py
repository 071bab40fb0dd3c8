"""Errors of input pipelines; every message is one sentence that says what to do.

PipelineError       the declaration is wrong: correct the pipeline
BadSampleError      an operation failed on one sample: correct the data or the operation
"""

from __future__ import annotations

from cloud.storage.errors import ShardError


class PipelineError(Exception):
    """A pipeline is declared wrongly: kinds that do not fit, an import path that does not exist, a bad parameter."""


class BadSampleError(ShardError):
    """An operation failed on one sample. `shard` is a URL, `op` the operation's name ("" for a missing member)."""

    def __init__(self, shard: str, key: str, op: str, reason: str) -> None:
        at = f", operation {op}" if op else ""
        super().__init__(
            f"{shard}: sample {key}{at}: {reason}; correct the sample, or leave it out with data.bad_samples: skip"
        )
        self.shard, self.key, self.op, self.reason = shard, key, op, reason

    def __reduce__(self) -> tuple[type[BadSampleError], tuple[str, str, str, str]]:
        return type(self), (self.shard, self.key, self.op, self.reason)
