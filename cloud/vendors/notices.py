"""What all readers of spot notices share: the notice, its error, and how to query the metadata service."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

GRACE_S = 30.0
"""Seconds that a spot VM has left if the vendor gives no time (GCP; Azure once an event has started)."""


class NoticeError(Exception):
    """The metadata service does not answer, or its answer cannot be parsed."""


@dataclass(frozen=True)
class Notice:
    """The vendor is going to take this VM back."""

    at_s: float  # unix time; not before this
    action: str  # the vendor's own term: "terminate", "preempted", "Preempt" ...


class Ask(Protocol):
    """Query the metadata service of the VM on which this runs."""

    def __call__(
        self, path: str, headers: dict[str, str], method: str = "GET", allowed: tuple[int, ...] = ()
    ) -> tuple[int, str]:
        """Return (status, text). Raises NoticeError unless the status is 200 or in `allowed`."""
        ...


Look = Callable[[], Notice | None]
"""Return the current notice, or None if there is none. Raises NoticeError."""


def json_object(text: str) -> dict[str, object]:
    """Parse a JSON object. Raises NoticeError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoticeError(f"not JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise NoticeError(f"not a JSON object: {text[:80]!r}")
    return found
