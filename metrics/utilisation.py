"""How busy VMs were, over any time: means weighted by seconds, and peaks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from metrics.records import UtilisationRecord

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Busy:
    """Utilisation over some time. Values as in `UtilisationRecord`; None: unknown in all of it."""

    seconds: float  # of all VMs
    scopes: tuple[str, ...]
    cpu_mean: float | None
    cpu_peak: float | None
    memory_peak_bytes: int | None  # of one VM
    sent_mean_bytes_per_s: float | None  # per VM
    sent_peak_bytes_per_s: float | None
    received_mean_bytes_per_s: float | None
    received_peak_bytes_per_s: float | None
    gpu_mean: float | None
    gpu_peak: float | None
    gpu_memory_peak_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "scopes"} | {
            "scopes": list(self.scopes)
        }


def busy(rows: Iterable[UtilisationRecord]) -> Busy | None:
    """Combine summaries of one VM or of several. None: there are none."""
    known = list(rows)
    if not known:
        return None
    return Busy(
        seconds=math.fsum(row.wall_s for row in known),
        scopes=tuple(sorted({row.scope for row in known})),
        cpu_mean=_mean(known, lambda row: row.cpu_mean),
        cpu_peak=_peak(row.cpu_peak for row in known),
        memory_peak_bytes=_peak(row.memory_bytes for row in known),
        sent_mean_bytes_per_s=_mean(known, lambda row: _rate(row.sent_bytes, row.wall_s)),
        sent_peak_bytes_per_s=_peak(row.sent_peak_bytes_per_s for row in known),
        received_mean_bytes_per_s=_mean(known, lambda row: _rate(row.received_bytes, row.wall_s)),
        received_peak_bytes_per_s=_peak(row.received_peak_bytes_per_s for row in known),
        gpu_mean=_mean(known, lambda row: row.gpu_mean),
        gpu_peak=_peak(row.gpu_peak for row in known),
        gpu_memory_peak_bytes=_peak(row.gpu_memory_bytes for row in known),
    )


def last_minute(rows: Sequence[UtilisationRecord]) -> list[UtilisationRecord]:
    """The summaries of one VM that began within 60 s before its newest one ended."""
    until_s = max((row.began_s + row.wall_s for row in rows), default=0.0)
    return [row for row in rows if row.began_s >= until_s - 60.5]


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None else count / seconds


def _mean(
    rows: Sequence[UtilisationRecord], value: Callable[[UtilisationRecord], float | None]
) -> float | None:
    known = [(row.wall_s, found) for row in rows if (found := value(row)) is not None]
    seconds = math.fsum(s for s, _ in known)
    return math.fsum(s * found for s, found in known) / seconds if known else None


def _peak(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)
