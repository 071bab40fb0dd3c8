"""What readers of spot notices share: a notice, its error, how a metadata service is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

GRACE_S = 30.0
"""What a spot VM has left where the vendor names no time (GCP; Azure once an event has started)."""


class NoticeError(Exception):
    """The metadata service gives no answer, or one that cannot be read."""


@dataclass(frozen=True)
class Notice:
    """The vendor will take this VM back."""

    at_s: float  # unix time; not before
    action: str  # the vendor's own word: "terminate", "preempted", "Preempt" ...


class Ask(Protocol):
    """Ask the metadata service of the VM that this runs on."""

    def __call__(
        self, path: str, headers: dict[str, str], method: str = "GET", allowed: tuple[int, ...] = ()
    ) -> tuple[int, str]:
        """(status, text); a status that is neither 200 nor `allowed` is an error. Raises NoticeError."""
        ...


Look = Callable[[], Notice | None]
"""Return what is announced now; None: nothing. Raises NoticeError."""


def json_object(text: str) -> dict[str, object]:
    """Parse a JSON object. Raises NoticeError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoticeError(f"not JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise NoticeError(f"not a JSON object: {text[:80]!r}")
    return found
