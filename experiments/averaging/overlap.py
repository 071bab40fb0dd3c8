"""What communication behind calculation makes of an epoch (`swarm.overlap`). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.schema.models import Emulation, ExperimentSpec, Swarm


def overlapped(spec: ExperimentSpec) -> bool:
    """Whether rounds go on behind calculation."""
    return spec.swarm.overlap == "delayed"


def epoch_seconds(spec: ExperimentSpec, calc_s: float, comm_s: float, step_s: float) -> float:
    """Expected. `step_s`: of one step that a peer reports; the epoch's last one is never behind a round."""
    if not overlapped(spec) or comm_s <= 0.0:
        return calc_s + comm_s
    return max(calc_s, comm_s + min(step_s, calc_s))


def overlap_note(spec: ExperimentSpec, calc_s: float | None, comm_s: float) -> list[str]:
    """What the plan says of it; nothing without."""
    if not overlapped(spec):
        return []
    if calc_s is None:
        return [
            "overlap delayed: a round goes on behind calculation, so an epoch takes the longer of the two"
        ]
    hidden, longer = (comm_s, "calculation") if calc_s > comm_s else (calc_s, "communication")
    return [
        f"overlap delayed: up to {hidden:.3g} s of a round's {comm_s:.3g} s pass behind {calc_s:.3g} s of calculation; "
        f"an epoch takes what {longer} does, and the work around a round"
    ]


def overlap_problems(swarm: Swarm, emulation: Emulation | None) -> Iterator[tuple[tuple[str, str], str]]:
    """Where and why it cannot be combined."""
    if swarm.overlap == "none":
        return
    if swarm.plain:
        yield (
            ("swarm", "overlap"),
            "a plain loop has no communication to overlap; remove it, or remove swarm.plain",
        )
    if emulation is not None and emulation.samples_scale not in (1, "auto"):
        yield (
            ("emulation", "samples_scale"),
            f"found {emulation.samples_scale:g}; must be 1 with 'swarm.overlap: delayed': a shortened calculation hides less "
            "of the communication than the real one, and no figure could be multiplied back; leave it out",
        )
