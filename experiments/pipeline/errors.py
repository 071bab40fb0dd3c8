"""Errors of input pipelines; every message is one sentence that says what to do.

PipelineError       the declaration is wrong: correct the pipeline
BadSampleError      an operation failed on one sample: correct the data or the operation
BadValueError       what an operation raises to refuse a value in its own words; it becomes a BadSampleError
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from cloud.storage.errors import ShardError

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_HERE = Path(__file__).parent


class PipelineError(Exception):
    """A pipeline is declared wrongly: kinds that do not fit, an import path that does not exist, a bad parameter."""


class BadValueError(Exception):
    """An operation refuses a value; the message is the whole reason, as a part of a sentence ("it is empty")."""


class BadSampleError(ShardError):
    """An operation failed on one sample. `shard` is a URL, `op` the operation's name ("" for a missing member)."""

    def __init__(self, shard: str, key: str, op: str, reason: str) -> None:
        self.shard, self.key, self.op, self.reason = shard, key, op, reason
        super().__init__(f"{self.where}; correct the sample, or leave it out with data.bad_samples: skip")

    @property
    def where(self) -> str:
        """The sample, the operation and the reason, as a part of a sentence."""
        at = f", operation {self.op}" if self.op else ""
        return f"{self.shard}: sample {self.key}{at}: {self.reason}"

    def __reduce__(self) -> tuple[type[BadSampleError], tuple[str, str, str, str]]:
        return type(self), (self.shard, self.key, self.op, self.reason)


def describe_error(error: BaseException) -> str:
    """The error with the file and line where it was raised: "ops.py:12: ValueError: ...".

    The innermost line outside the standard library, installed packages and the code that runs pipelines is named, if
    there is one. Of a BadValueError only the message is given.
    """
    if isinstance(error, BadValueError):
        return str(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)] or list(frames)
    where = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    return f"{where}{type(error).__name__}: {error}"


def _is_own(filename: str) -> bool:
    return not filename.startswith((*_INSTALLED, "<frozen")) and Path(filename).parent != _HERE
