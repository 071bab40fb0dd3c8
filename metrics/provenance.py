"""What stands beside a run's figures in a row: what it ran on, at what scales, whether the host kept the clock. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cloud.targets import target_of
from metrics.store.meta import RunMeta


class RanOn(NamedTuple):
    """What a run ran on, as its store says. None: unknown, or of `scales`: nothing was scaled."""

    target: str | None = None  # a name of `cloud.targets`
    emulated: bool | None = None
    scales: Mapping[str, float] | None = None  # bytes, time, samples
    host_contended: bool | None = None

    @classmethod
    def of(cls, meta: RunMeta) -> RanOn:
        """Of a run's meta."""
        scales = None if meta.scales is None else meta.scales.to_json()
        return cls(meta.target, meta.emulated, scales, meta.host_contended)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why some of it is null, a sentence; none where all is known."""
        names = [name for name, value in self._asdict().items() if value is None]
        why = target_of(self.target).why_null
        return (f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} null: {why}.",) if names else ()


NOBODY_KNOWS = RanOn()
"""Of a run whose records tell nothing of it."""


def origin_mark(target: str | None, emulated: bool | None) -> str:
    """What a run ran on: `emulated`, `loopback`, `rented`, `rented, padded`, `logs`, `not emulated`, `unknown`.

    `target` and `emulated` are the run's own (docs/design.md); loopback is emulated, without distance.
    """
    return target_of(target).mark(emulated)


def host_mark(contended: bool | None, target: str | None) -> str:
    """`TOO BUSY`; `unknown` where nobody knows of a run on this machine; "" where it kept the clock or there is none."""
    if contended is None:
        return "unknown" if target_of(target).on_this_host else ""
    return "TOO BUSY" if contended else ""


def scales_mark(scales: Mapping[str, Any] | None) -> str | None:
    """`bytes 100, time 1, samples 8`; None: unknown, or nothing was scaled."""
    return ", ".join(f"{name} {value:g}" for name, value in scales.items()) if scales else None


def all_marks(marks: Iterable[str | None]) -> str:
    """Each mark once, in order; those that are empty are left out."""
    return "; ".join(dict.fromkeys(mark for mark in marks if mark))


def contended_of(runs: Iterable[bool | None]) -> bool | None:
    """Of several runs together: True as soon as one is, else None as soon as one is unknown; None for no run."""
    known = list(runs)
    if True in known:
        return True
    return None if None in known or not known else False
