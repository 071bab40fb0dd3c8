"""Notes of a plan on how the run ends: goals that it cannot reach, and what is kept of it. Pure."""

from __future__ import annotations

from experiments.schema.models import ExperimentSpec


def goal_notes(spec: ExperimentSpec, *, priced: bool) -> list[str]:
    """Notes on `train.until`. `priced`: whether every price that the run's cost depends on is known."""
    until = None if spec.train is None else spec.train.until
    if until is None:
        return []
    notes = [f"the run ends earlier once a goal of train.until is reached: {until}"]
    if until.usd is not None and not priced:
        notes.append(
            "train.until.usd cannot be reached, because the dollars spent are unknown while a price is: add the missing prices"
        )
    target, epochs = spec.swarm.target_batch_size, spec.measure.all_epochs
    if until.samples is not None and until.samples > target * epochs:
        needed = -(-until.samples // target) - spec.measure.warmup_epochs
        notes.append(
            f"train.until.samples cannot be reached: the {epochs} epochs of measure train on about {target * epochs:,} samples; "
            f"set measure.epochs to {needed} or more"
        )
    return notes


def kept_notes(spec: ExperimentSpec, *, rented: bool) -> list[str]:
    """What is said of a task on rented VMs that stores no checkpoints."""
    if not rented or spec.task is None or spec.checkpoint is not None:
        return []
    return [
        "no checkpoints: the model is not kept, and a run that loses all peers starts from the first epoch; add a "
        "checkpoint section"
    ]
