"""Whether a run that is done may be counted as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class Disturbance(StrEnum):
    """Why a run is to be repeated. A run with HOST_BUSY is neither judged nor ranked; one with DROPPED_ROUNDS is."""

    HOST_BUSY = "host_busy"
    DROPPED_ROUNDS = "dropped_rounds"


def disturbances(
    summary: Mapping[str, Any], reasons: Sequence[str], experiment: Mapping[str, Any]
) -> dict[Disturbance, str]:
    """Why a run on this machine is to be repeated, with a sentence each; empty: it is not.

    `summary` is `metrics.summary.summarise`'s, `reasons` why the host counts as contended, `experiment` the
    resolved document. A round that was dropped beside a planned fault (`emulation.preempt`) or a VM that was
    taken back is what the experiment is about. A run on rented VMs is never repeated: it costs money, and no host of ours
    disturbed it.
    """
    if summary["target"] == "sky":
        return {}
    found: dict[Disturbance, str] = {}
    if summary["host_contended"]:
        why = "; ".join(reasons) or "it kept no reason"
        found[Disturbance.HOST_BUSY] = f"the host was too busy ({why})"
    emulation = experiment.get("emulation")
    planned = isinstance(emulation, Mapping) and emulation.get("preempt") is not None
    dropped = int(summary["dropped_rounds"] or 0)
    if dropped and not planned and not summary["preemptions"]["count"]:
        rounds = "rounds were" if dropped > 1 else "round was"
        found[Disturbance.DROPPED_ROUNDS] = f"{dropped} {rounds} dropped without a planned fault"
    return found
