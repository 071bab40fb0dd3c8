"""What the commands that measure a profile share: their errors, and options that are lists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.pipeline.target import Target

_MOST = 256  # streams or workers


@contextmanager
def profile_errors(target: Target) -> Iterator[None]:
    """Raise ProfileError for what a pipeline, a task, a worker and the machine raise."""
    from experiments.peer.training.decoding import WorkerEndedError
    from experiments.pipeline.errors import BadSampleError, PipelineError
    from experiments.tasks.errors import TaskError
    from orchestrator.pipeline.strategy_runs import ProfileError

    try:
        yield
    except BadSampleError as error:
        without = f"{error.where}; correct the sample or the operation"
        raise ProfileError(without if target.spec is None else str(error)) from error
    except (PipelineError, TaskError, WorkerEndedError) as error:
        raise ProfileError(str(error)) from error
    except OSError as error:
        raise ProfileError(
            f"the machine failed while measuring ({error.strerror or error}); check its disk and memory, then measure again"
        ) from error
    except MemoryError as error:
        raise ProfileError("the memory is full; measure fewer --samples or leave out memory") from error


def words(option: str, text: str) -> tuple[str, ...]:
    """Parse "none,zstd", each word once. Raises UsageError if there is none."""
    from orchestrator.errors import UsageError

    found = tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))
    if not found:
        raise UsageError(f"{option} '{text}': name at least one")
    return found


def numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """Parse "1,2", each number once. Raises UsageError."""
    from orchestrator.errors import UsageError

    parts = words(option, text)
    if wrong := [w for w in parts if not (w.isascii() and w.isdecimal() and least <= int(w) <= _MOST)]:
        raise UsageError(f"{option} {wrong[0]}: write whole numbers from {least} to {_MOST}, such as 1,2")
    return tuple(dict.fromkeys(map(int, parts)))
