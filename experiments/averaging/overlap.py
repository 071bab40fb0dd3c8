"""`swarm.overlap`: training waits for each round, or a round goes on behind the next epoch's calculation."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.averaging.records import AveragingMethod, Problem, Schedule, Setting


def _epoch_s(calc_s: float, comm_s: float, step_s: float) -> float:
    """The longer of both; an epoch's last reported step is never behind a round."""
    return max(calc_s, comm_s + min(step_s, calc_s)) if comm_s > 0.0 else calc_s + comm_s


def _plan_notes(calc_s: float | None, comm_s: float) -> list[str]:
    if calc_s is None:
        return [
            "overlap delayed: a round goes on behind calculation, so an epoch takes the longer of the two"
        ]
    hidden, longer = (comm_s, "calculation") if calc_s > comm_s else (calc_s, "communication")
    return [
        f"overlap delayed: up to {hidden:.3g} s of a round's {comm_s:.3g} s pass behind {calc_s:.3g} s of calculation; "
        f"an epoch takes what {longer} does, and the work around a round"
    ]


def _problems(method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    if setting.samples_scale not in (1, "auto"):
        yield (
            ("emulation", "samples_scale"),
            f"found {setting.samples_scale:g}; must be 1 with 'swarm.overlap: delayed': a shortened calculation hides less "
            "of the communication than the real one, and no figure could be multiplied back; leave it out",
        )


BLOCKING = Schedule(
    key="overlap", name="none", meaning="a round holds training up", optimizer="SwarmOptimizer"
)
DELAYED = Schedule(
    key="overlap",
    name="delayed",
    meaning="it goes on while the next epoch's gradients are calculated, up to one epoch's of them with the weights of "
    "before the update",
    problems=_problems,
    paper_note=" (calculation and communication at once: an epoch is not their sum)",
    epoch_s=_epoch_s,
    plan_notes=_plan_notes,
    hides_rounds=True,
    optimizer="OverlappedOptimizer",
)
