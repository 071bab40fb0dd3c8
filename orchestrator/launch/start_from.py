"""The checkpoint of another run with which a run begins, in its plan and in its meta."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.schema.models import ExperimentSpec


@dataclass(frozen=True, slots=True)
class StartFrom:
    """A complete checkpoint that fits the run. Created by `orchestrator.checkpoints.start.find_start`."""

    prefix: str  # s3://bucket/prefix/<the other run>, in the store of the new run
    name: str
    epoch: int
    folder: str | None = None  # its copy on this machine, which is stored there before the peers start
    differences: tuple[
        str, ...
    ] = ()  # from the run that stored it, such as "target batch size 512 instead of 256"
    data_anew: str = ""  # why the data starts from the beginning; "": each slot goes on where it was

    def to_json(self) -> dict[str, Any]:
        """The value of `RunMeta.start_from`."""
        return {"prefix": self.prefix, "name": self.name, "epoch": self.epoch, "folder": self.folder}

    def notes(self, spec: ExperimentSpec) -> tuple[str, ...]:
        """What the plan says of it."""
        warmup, measured = spec.measure.after(self.epoch)
        begins = (
            f"starts from {self.prefix}/{self.name}: epoch {self.epoch + 1} is its first one, with {warmup - self.epoch} "
            f"warm-up + {measured} measured epochs left; duration and cost above are those of the epochs left"
        )
        data = (
            f"the data starts from the beginning: {self.data_anew}"
            if self.data_anew
            else f"each peer's data goes on where it was at the end of epoch {self.epoch}, or of the last known one before it"
        )
        if not self.differences:
            return (data, begins)
        return (data, begins, f"differs from the run that stored {self.name}: {'; '.join(self.differences)}")


def training_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """How an experiment trains, as the manifests of its checkpoints say it (`Manifest.trained_with`)."""
    swarm = spec.swarm
    return {
        "optimizer": swarm.optimizer.as_mapping(),
        "schedule": {} if swarm.schedule is None else swarm.schedule.as_mapping(spec.measure.all_epochs),
        "target_batch_size": swarm.target_batch_size,
    }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Name what differs between two results of `training_settings`, such as `optimizer.lr 0.02 instead of 0.01`."""
    mine, other = (_flat(json.loads(json.dumps(settings))) for settings in (ours, theirs))
    names = [
        name for name in (*mine, *(n for n in other if n not in mine)) if mine.get(name) != other.get(name)
    ]
    if ("schedule.kind" in names) and ("schedule.kind" not in mine or "schedule.kind" not in other):
        kinds = (settings.get("schedule.kind", "no schedule") for settings in (mine, other))
        names = [name for name in names if not name.startswith("schedule.")]
        return (*(_said(name, mine, other) for name in names), "schedule: {} instead of {}".format(*kinds))
    return tuple(_said(name, mine, other) for name in names)


def _said(name: str, mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    ours, theirs = (json.dumps(s[name]) if name in s else "the default" for s in (mine, other))
    return f"{name} {ours} instead of {theirs}".replace('"', "")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One level of keys: `optimizer.lr`."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= (
            {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, dict) else {key: value}
        )
    return found
