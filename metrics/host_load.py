"""Decide whether the host was fast enough for the emulation's timing to be trusted. Pure.

Only the seconds of the measured epochs count: the start of the peers and the warm-up delay packets without affecting any
figure. The limits and their sources are in `trust_limits.csv`. Older runs have no per-second report of the switch; they
are judged by the figures of the whole run, and `basis` says so.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.records import EpochRecord

MEASURED, WHOLE = "measured epochs", "whole run"  # the beginning of `basis`

_WORDS = {
    "late_worst_s": "a packet was {:.2f} s late",
    "late_over_10ms_share": "{:.0%} of the packets were more than 10 ms late",
    "sleep_worst_s": "a sleep was {:.2f} s too long",
    "pressure_share": "some task waited for a CPU {:.0%} of the time",
    "stretched_share": "the peers' emulated accelerators took {:.1%} longer than asked",
}

_OF_PACKETS = ("late_worst_s", "late_over_10ms_share")

Span = tuple[float, float]  # unix seconds


@dataclass(frozen=True, slots=True)
class PaceSecond:
    """One second of the host's load, from pace.csv. None: unknown."""

    second: int  # unix
    sleep_worst_s: float
    sleeps: int
    sleeps_late: int
    pressure_share: float | None
    busy_share: float | None


@cache
def limits() -> dict[str, float]:
    """Return the upper limit of each figure."""
    text = (files("metrics") / "trust_limits.csv").read_text(encoding="utf-8")
    return {row["figure"]: float(row["limit"]) for row in csv.DictReader(text.splitlines())}


def pace_of(text: str) -> list[PaceSecond]:
    """Parse a pace.csv.

    Headers that a restarted host repeated and an incomplete last line are skipped.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    header = lines[0] if lines else ""
    found: list[PaceSecond] = []
    for row in csv.DictReader([header, *(line for line in lines if line != header)]):
        shares = [float(row[name]) if row[name] else None for name in ("pressure_share", "busy_share")]
        worst, counts = float(row["sleep_worst_s"]), (int(row["sleeps"]), int(row["sleeps_late"]))
        found.append(PaceSecond(int(row["second"]), worst, *counts, *shares))
    return found


def spans_of(epochs: Iterable[SwarmEpoch]) -> list[Span]:
    """Return the start and end of each measured epoch. `epochs`: raw."""
    return [(e.ended_s - (e.duration_s or 0.0), e.ended_s) for e in measured(epochs)]


def stretched_share(
    records: Iterable[EpochRecord], chosen: Iterable[int], target_step_s: Mapping[str, float]
) -> float | None:
    """Return the share by which the padded phases exceeded their target, over all peers. None: nothing was padded.

    `chosen`: the epochs that count. `target_step_s`: seconds of one reported step by VM; VMs with 0, or without an entry,
    are not padded.
    """
    counted = set(chosen)
    target_s = overrun_s = 0.0
    for r in records:
        step_s = target_step_s.get(r.vm, 0.0)
        if r.epoch in counted and step_s > 0:
            target_s += r.steps * step_s
            overrun_s += r.forward_s + r.backward_s - r.steps * step_s
    return max(0.0, overrun_s) / target_s if target_s > 0 else None


def host_trust(
    switch: Mapping[str, Any],
    pace: Sequence[PaceSecond],
    spans: Sequence[Span],
    stretched: float | None,
    *,
    calculates: bool = False,
) -> dict[str, Any]:
    """Return meta's `host`: the figures, whether one exceeds its limit, and why. None: not measured.

    `switch`: the last switch.json. `spans`: the measured epochs. `busy_share` has no limit. `calculates`: the peers use
    the CPU to train instead of waiting as long as an accelerator would, so only late packets count.
    """
    packets = _packets(switch, spans)
    sleeps = [row for row in pace if _inside(row.second, spans)]
    figures: dict[str, float | None] = {
        "late_worst_s": _known(switch, "late_worst_s"),
        "late_over_10ms_share": _known(switch, "late_over_10ms_share"),
        "sleep_worst_s": _known(switch, "sleep_worst_s"),
    }
    whole = packets is None and figures["late_worst_s"] is not None
    whole = whole or (not sleeps and figures["sleep_worst_s"] is not None)
    if packets is not None:
        figures["late_worst_s"], figures["late_over_10ms_share"] = packets
    if sleeps:
        figures["sleep_worst_s"] = max(row.sleep_worst_s for row in sleeps)
    figures["pressure_share"] = _mean(row.pressure_share for row in sleeps)
    figures["busy_share"] = _mean(row.busy_share for row in sleeps)
    figures["stretched_share"] = stretched
    judged = {name: limit for name, limit in limits().items() if not calculates or name in _OF_PACKETS}
    reasons = [
        _WORDS[name].format(value)
        for name, limit in judged.items()
        if (value := figures[name]) is not None and value > limit
    ]
    unknown = all(figures[name] is None for name in judged)
    seconds = math.fsum(end - begin for begin, end in spans)
    return {
        **figures,
        "basis": f"{WHOLE}, its start included" if whole else f"{MEASURED}, {seconds:.0f} s",
        "contended": None if unknown else bool(reasons),
        "reasons": reasons,
    }


def describe_host(host: Mapping[str, Any] | None) -> str:
    """Describe `host` in one clause: the limits exceeded, else the measured values. "" if nothing was measured."""
    known = host or {}
    if known.get("contended") is None:
        return ""
    basis = str(known.get("basis") or f"{WHOLE}, its start included")
    if known["contended"]:
        reasons: list[str] = known.get("reasons") or []
        return f"{'; '.join(reasons) or 'late packets or stretched sleeps'} ({basis})"
    shown = [
        _WORDS[name].format(value)
        for name in ("late_worst_s", "late_over_10ms_share")
        if (value := known.get(name)) is not None
    ]
    return f"at worst {'; '.join(shown)} ({basis})" if shown else basis


def _packets(switch: Mapping[str, Any], spans: Sequence[Span]) -> tuple[float | None, float | None] | None:
    """Return (worst lateness, share over 10 ms) within the spans.

    None if the switch does not report by second, or has already dropped seconds of the spans.
    """
    rows: list[Sequence[float]] | None = switch.get("by_second")
    if rows is None or not spans:
        return None
    late: dict[str, int] = switch.get("late") or {}
    counted = sum(int(n) for n in late.values())
    truncated = counted > sum(int(row[1]) for row in rows)
    if truncated and min(begin for begin, _ in spans) < min((row[0] for row in rows), default=math.inf):
        return None
    inside = [row for row in rows if _inside(int(row[0]), spans)]
    packets = sum(int(row[1]) for row in inside)
    if not packets:
        return None, None
    return max(float(row[3]) for row in inside), sum(int(row[2]) for row in inside) / packets


def _inside(second: int, spans: Sequence[Span]) -> bool:
    """Whether the second overlaps one of the spans."""
    return any(begin < second + 1 and second < end for begin, end in spans)


def _known(report: Mapping[str, Any], name: str) -> float | None:
    value = report.get(name)
    return None if value is None else float(value)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None
