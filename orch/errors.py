"""The exception of the notebook API, and the conversion of internal exceptions to it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class OrchError(Exception):
    """Something cannot be read. The message says what, why and what to do; `__cause__` is the original exception."""


@contextmanager
def sentences() -> Generator[None, None, None]:
    """Convert exceptions for bad input to OrchError; internal errors pass unchanged."""
    from analysis.importers.base import ImportFailed
    from cloud.prices.rows import PriceBookError
    from experiments.pipeline.trace_format import TraceFileError
    from metrics.store.database import StoreError
    from orchestrator.errors import UsageError

    try:
        yield
    except (StoreError, UsageError, PriceBookError, ImportFailed, TraceFileError) as error:
        raise OrchError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise OrchError(f"{where}{error.strerror or error}") from error
