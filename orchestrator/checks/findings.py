"""Findings of checks: one line for the user, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "missing", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # "credentials aws"
    state: State  # missing: the requested run needs it
    found: str
    next: str = ""  # what to do about it; "" for nothing


def usable(findings: Iterable[Finding]) -> bool:
    """Whether nothing is missing. Unknown findings and warnings do not prevent a run."""
    return all(finding.state != "missing" for finding in findings)
