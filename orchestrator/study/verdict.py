"""Decide whether a finished run must be repeated. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class Disturbance(StrEnum):
    """Reason to repeat a run. Runs with HOST_BUSY are neither judged nor ranked; runs with DROPPED_ROUNDS are."""

    HOST_BUSY = "host_busy"
    DROPPED_ROUNDS = "dropped_rounds"


def disturbances(
    summary: Mapping[str, Any], reasons: Sequence[str], experiment: Mapping[str, Any]
) -> dict[Disturbance, str]:
    """Return the reasons to repeat a run on this machine, with a sentence each; empty for none.

    `summary` is the result of `metrics.summary.summarise`, `reasons` says why the host counts as contended, and
    `experiment` is the resolved document. Rounds dropped in a run with a planned fault (`emulation.preempt`) or a
    preempted VM are part of the experiment. Runs on rented VMs are never repeated: they cost money, and are not
    disturbed by this host.
    """
    if summary["target"] == "sky":
        return {}
    found: dict[Disturbance, str] = {}
    if summary["host_contended"]:
        why = "; ".join(reasons) or "no reason recorded"
        found[Disturbance.HOST_BUSY] = f"the host was too busy ({why})"
    emulation = experiment.get("emulation")
    planned = isinstance(emulation, Mapping) and emulation.get("preempt") is not None
    dropped = int(summary["dropped_rounds"] or 0)
    if dropped and not planned and not summary["preemptions"]["count"]:
        rounds = "rounds were" if dropped > 1 else "round was"
        found[Disturbance.DROPPED_ROUNDS] = f"{dropped} {rounds} dropped without a planned fault"
    return found
