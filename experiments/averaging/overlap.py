"""`swarm.overlap`: training waits for each round, or a round runs during the calculation of the next epoch."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.averaging.records import AveragingMethod, Problem, Schedule, Setting


def _epoch_s(calc_s: float, comm_s: float, step_s: float) -> float:
    """Return the longer of both. The last reported step of an epoch never overlaps with a round."""
    return max(calc_s, comm_s + min(step_s, calc_s)) if comm_s > 0.0 else calc_s + comm_s


def _plan_notes(calc_s: float | None, comm_s: float) -> list[str]:
    if calc_s is None:
        return [
            "overlap delayed: a round runs during calculation, so an epoch takes as long as the longer of the two"
        ]
    overlapped_s, longer = (comm_s, "calculation") if calc_s > comm_s else (calc_s, "communication")
    return [
        f"overlap delayed: up to {overlapped_s:.3g} s of a round's {comm_s:.3g} s overlap with {calc_s:.3g} s of calculation; "
        f"an epoch takes as long as its {longer}, plus the work before and after a round"
    ]


def _problems(method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    if setting.samples_scale not in (1, "auto"):
        yield (
            ("emulation", "samples_scale"),
            f"found {setting.samples_scale:g}; must be 1 with 'swarm.overlap: delayed': a shortened calculation overlaps with "
            "less of the communication than the real one, so figures could not be converted to full scale; remove the key",
        )


BLOCKING = Schedule(
    key="overlap", name="none", meaning="training waits for each round", optimizer="SwarmOptimizer"
)
DELAYED = Schedule(
    key="overlap",
    name="delayed",
    meaning="a round runs while the gradients of the next epoch are calculated, for up to one epoch with the weights from "
    "before the update",
    problems=_problems,
    paper_note=" (calculation and communication overlap: an epoch is shorter than their sum)",
    epoch_s=_epoch_s,
    plan_notes=_plan_notes,
    overlaps_rounds=True,
    optimizer="OverlappedOptimizer",
)
