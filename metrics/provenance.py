"""Provenance shown next to a run's figures: its target, its scales, and whether the host was too busy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cloud.targets import target_of
from metrics.store.meta import RunMeta


class RanOn(NamedTuple):
    """Where a run ran, according to its store. None: unknown; for `scales` also: nothing was scaled."""

    target: str | None = None  # a name of `cloud.targets`
    emulated: bool | None = None
    scales: Mapping[str, float] | None = None  # bytes, time, samples
    host_contended: bool | None = None

    @classmethod
    def of(cls, meta: RunMeta) -> RanOn:
        """Read it from a run's meta."""
        scales = None if meta.scales is None else meta.scales.to_json()
        return cls(meta.target, meta.emulated, scales, meta.host_contended)

    @property
    def unknown(self) -> tuple[str, ...]:
        """One sentence that says why some values are null; empty if all are known."""
        names = [name for name, value in self._asdict().items() if value is None]
        why = target_of(self.target).why_null
        return (f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} null: {why}.",) if names else ()


UNKNOWN_ORIGIN = RanOn()
"""For a run whose records do not say where it ran."""


def origin_mark(target: str | None, emulated: bool | None) -> str:
    """Return the label `emulated`, `loopback`, `rented`, `rented, padded`, `logs`, `not emulated` or `unknown`.

    `target` and `emulated` are those of the run's meta (docs/design.md). Loopback is emulated, without network delays.
    """
    return target_of(target).mark(emulated)


def host_mark(contended: bool | None, target: str | None) -> str:
    """Return `TOO BUSY`, `unknown` for an unjudged run on this machine, or "" if the host was fast enough or not used."""
    if contended is None:
        return "unknown" if target_of(target).on_this_host else ""
    return "TOO BUSY" if contended else ""


def scales_mark(scales: Mapping[str, Any] | None) -> str | None:
    """Return for example `bytes 100, time 1, samples 8`. None: unknown, or nothing was scaled."""
    return ", ".join(f"{name} {value:g}" for name, value in scales.items()) if scales else None


def all_marks(marks: Iterable[str | None]) -> str:
    """Join the marks, without duplicates and empty ones."""
    return "; ".join(dict.fromkeys(mark for mark in marks if mark))


def contended_of(runs: Iterable[bool | None]) -> bool | None:
    """Combine several runs: True if any is contended, else None if any is unknown or there is no run, else False."""
    known = list(runs)
    if True in known:
        return True
    return None if None in known or not known else False
