"""What a check found: one line for a person, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "missing", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str  # "credentials aws"
    state: State  # missing: what was asked for cannot run without it
    found: str
    next: str = ""  # what to do about it; "" when nothing is to be done


def usable(findings: Iterable[Finding]) -> bool:
    """Whether nothing is missing. What is unknown or a warning does not stop a run."""
    return all(finding.state != "missing" for finding in findings)
