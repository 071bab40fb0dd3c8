"""A finding: one thing that is doubtful in a run's numbers, with the figure that shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "doubt", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "doubt", "note")
"""The worst first. error: the figure is wrong as it stands, do not use it; doubt: it may mislead, look before
using it; note: good to know, the figure stands."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One doubt and its evidence. `value` and `expected` are in the unit that `figure` names (shares: 0 to 1)."""

    run_id: str | None  # None: about several runs
    label: str | None
    check: str  # the check's name, as in docs/audit.md
    severity: Severity
    sentence: str
    figure: str  # what `value` is
    value: float | None
    expected: float | None = None  # what it is held against: a threshold or another account of the same thing
    n: int | None = None  # observations behind `value`
    file: str | None = None  # the log it is about, where it is one VM's or the monitor's

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def reaches(severity: Severity, floor: Severity) -> bool:
    """Whether `severity` is as bad as `floor`, or worse."""
    return SEVERITIES.index(severity) <= SEVERITIES.index(floor)
