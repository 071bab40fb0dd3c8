"""The checkpoint of another run with which a run begins, in its plan and in its meta."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from experiments.schema.models import ExperimentSpec
from orchestrator.launch.plan_run import RunPlan


@dataclass(frozen=True, slots=True)
class StartFrom:
    """A complete checkpoint that fits the run. Created by `orchestrator.checkpoints.start.find_start`."""

    prefix: str  # s3://bucket/prefix/<the other run>, in the store of the new run
    name: str
    epoch: int
    folder: str | None = None  # its copy on this machine, which is stored there before the peers start

    def to_json(self) -> dict[str, Any]:
        """The value of `RunMeta.start_from`."""
        return {"prefix": self.prefix, "name": self.name, "epoch": self.epoch, "folder": self.folder}


def with_start(plan: RunPlan, start: StartFrom) -> RunPlan:
    """The plan of the same run, which begins with this checkpoint."""
    warmup, measured = epochs_after(plan.spec, start.epoch)
    note = (
        f"starts from {start.prefix}/{start.name}: epoch {start.epoch + 1} is its first one, with {warmup - start.epoch} "
        f"warm-up + {measured} measured epochs left; duration and cost above are those of all epochs"
    )
    notes = [*plan.document.get("notes", ()), note]
    return replace(
        plan, document={**plan.document, "notes": notes, "start_from": start.to_json()}, start=start.to_json()
    )


def epochs_after(spec: ExperimentSpec, epoch: int) -> tuple[int, int]:
    """The last epoch of the warm-up, and the number of measured ones, of a run that begins after `epoch`."""
    last = spec.measure.all_epochs
    warmup = min(epoch + spec.measure.warmup_epochs, last)
    return warmup, last - warmup
