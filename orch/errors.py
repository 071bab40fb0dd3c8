"""The one exception of the notebook API, and how the rooms' exceptions become it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class OrchError(Exception):
    """One sentence: what cannot be read, why, what to do. The original exception is its `__cause__`."""


@contextmanager
def sentences() -> Generator[None, None, None]:
    """Turn what the rooms raise for bad input into OrchError; orch's own faults pass as they are."""
    from analysis.importers.base import ImportFailed
    from cloud.prices.rows import PriceBookError
    from metrics.store.database import StoreError
    from orchestrator.errors import UsageError

    try:
        yield
    except (StoreError, UsageError, PriceBookError, ImportFailed) as error:
        raise OrchError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise OrchError(f"{where}{error.strerror or error}") from error
