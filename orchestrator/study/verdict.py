"""Whether a run that is done may be counted as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HOST = "the host was too busy"


def of_host(disturbed: Sequence[str]) -> bool:
    """Whether `disturbances` has the host's part: such a run is neither judged nor ranked; one with a dropped round is."""
    return any(sentence.startswith(_HOST) for sentence in disturbed)


def disturbances(
    summary: Mapping[str, Any], reasons: Sequence[str], experiment: Mapping[str, Any]
) -> tuple[str, ...]:
    """Why a run on this machine is to be repeated, one sentence each; empty: it is not.

    `summary` is `metrics.summary.summarise`'s, `reasons` why the host counts as contended, `experiment` the
    resolved document. A round that was dropped beside a planned fault (`emulation.preempt`) or a VM that was
    taken back is what the experiment is about. A run on rented VMs is never repeated: it costs money, and no host of ours
    disturbed it.
    """
    if summary["target"] == "sky":
        return ()
    found: list[str] = []
    if summary["host_contended"]:
        found.append(f"{_HOST} ({'; '.join(reasons) or 'it kept no reason'})")
    emulation = experiment.get("emulation")
    planned = isinstance(emulation, Mapping) and emulation.get("preempt") is not None
    dropped = int(summary["dropped_rounds"] or 0)
    if dropped and not planned and not summary["preemptions"]["count"]:
        found.append(f"{dropped} round{'s were' if dropped > 1 else ' was'} dropped without a planned fault")
    return tuple(found)
