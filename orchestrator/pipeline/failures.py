"""Errors of a user's pipeline and task, as one sentence that names the user's own files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from orchestrator.errors import OrchError


class InputError(OrchError):
    """The pipeline, the task or a sample is wrong; the message says where, and what to correct."""


@contextlib.contextmanager
def input_errors(own_paths: Callable[[str], str] = str) -> Iterator[None]:
    """Raise InputError for what a pipeline, a task or a worker raises. `own_paths`: that of the OpenInput."""
    from analysis.pipeline.chrome_trace import ProfileError
    from experiments.peer.config import PeerConfigError
    from experiments.peer.training.decoding import WorkerEndedError
    from experiments.pipeline.errors import BadSampleError, PipelineError, describe_error
    from experiments.pipeline.trace import TraceError
    from experiments.pipeline.trace_format import TraceFileError
    from experiments.tasks.errors import TaskError

    known = (
        BadSampleError,
        PeerConfigError,
        PipelineError,
        ProfileError,
        TaskError,
        TraceError,
        TraceFileError,
        WorkerEndedError,
    )
    try:
        yield
    except known as error:
        raise InputError(own_paths(str(error))) from error
    except SystemExit as error:
        text = own_paths(describe_error(error))
        raise InputError(
            f"the code of the task or pipeline ends the process ({text}); remove the call"
        ) from error
