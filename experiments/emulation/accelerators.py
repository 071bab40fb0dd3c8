"""Whether the steps of an experiment are padded to an accelerator's time, or take as long as the machine needs. Pure."""

from __future__ import annotations

from typing import Literal

from experiments.schema.models import Emulation, ExperimentSpec, Task

# Values of `EmulationPlan.accelerators`: padded to the accelerator's time, as long as this host needs, or on the real one.
PADDED, HOST, REAL = "padded", "host", "real"


def resolved(emulation: Emulation, task: Task | None) -> Literal["padded", "host"]:
    """Return `emulation.accelerators`, with auto resolved.

    A task's own model is trained even where steps are padded, which can only work if this machine computes a step faster
    than the accelerator. So a task is padded on request only.
    """
    if emulation.accelerators != "auto":
        return emulation.accelerators
    return PADDED if task is None else HOST


def is_padded(spec: ExperimentSpec) -> bool:
    """Whether steps are padded to the accelerator's measured time. False also for `emulation: null`."""
    return spec.emulation is not None and resolved(spec.emulation, spec.task) == PADDED
