"""The finding: a doubtful figure of a run, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "doubt", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "doubt", "note")
"""Most severe first. error: the figure is wrong; doubt: it may mislead, so check before using it; note: for
information, the figure is valid."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding and its evidence. `value` and `expected` are in the unit of `figure` (shares: 0 to 1)."""

    run_id: str | None  # None: about several runs
    label: str | None
    check: str  # the check's name, as in docs/audit.md
    severity: Severity
    sentence: str
    figure: str  # what `value` is
    value: float | None
    expected: float | None = None  # the reference: a threshold or another measurement of the same quantity
    n: int | None = None  # observations behind `value`
    file: str | None = None  # the log, if the finding concerns one VM's or the monitor's

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def reaches(severity: Severity, floor: Severity) -> bool:
    """Whether `severity` is at least as severe as `floor`."""
    return SEVERITIES.index(severity) <= SEVERITIES.index(floor)
