"""Catalogue of known names: models, step times of accelerators, the paper's results, price books and networks.

The data are next to this module (`models.csv`, `accelerators.csv`, `published.csv`); each row names its source.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from cloud.networks.network import network_names
from experiments.averaging.model_shapes import Shapes

_EXPERIMENTS = Path(__file__).resolve().parent

ACCELERATORS = (
    *(
        "T4",
        "L4",
        "A10",
        "A10G",
        "A100",
        "A100-80GB",
        "H100",
        "H200",
        "L40S",
        "V100",
        "P100",
        "K80",
        "RTX8000",
    ),
    "CPU",
)
"""SkyPilot's names of the supported accelerators. CPU: no accelerator."""


@dataclass(frozen=True, slots=True)
class Model:
    """One row of models.csv, or the model of a task."""

    name: str
    parameters: int
    kind: str  # vision, language, speech, digits; task: of a task, which no file lists
    bytes_per_sample: int | None  # of the paper's data set as streamed; None: unknown
    source: str
    shapes: Shapes | None = None  # of all parameters; None: those of model_shapes.csv

    @property
    def averaged_as(self) -> str | Shapes:
        """What determines how its gradients are compressed: its name in model_shapes.csv, or its shapes."""
        return self.name if self.shapes is None else self.shapes


@dataclass(frozen=True, slots=True)
class StepTime:
    """Wall time of one training step of a model on an accelerator."""

    accelerator: str  # "T4:1"
    model: str
    batch_size: int  # samples of the measured step
    step_s: float  # in a swarm
    plain_step_s: float  # in a plain PyTorch loop
    forward_share: float  # share of the forward pass in the step
    sync_work_s: float  # the VM's own work before and after a round: gradient copies, offloaded optimizer
    source: str

    @property
    def padded(self) -> bool:
        """Whether an emulated step is padded to this time. Steps on a CPU are not."""
        return not self.accelerator.startswith("CPU:")

    def forward_s(self, batch_size: int) -> float:
        """Return the forward time of a step of `batch_size` samples, assumed to be linear in the samples."""
        return self.step_s * self.forward_share * batch_size / self.batch_size

    def backward_s(self, batch_size: int) -> float:
        """Return the backward time of a step of `batch_size` samples."""
        return self.step_s * (1 - self.forward_share) * batch_size / self.batch_size


@dataclass(frozen=True, slots=True)
class Published:
    """The paper's figures of one experiment, by wall clock and at full scale. None: not published."""

    experiment: str  # "geo-b2-nlp"
    run: str  # "B-2 NLP"
    model: str
    vms: int
    vms_by_location: tuple[tuple[str, int], ...]  # ("gcp/us-central1", 1), ...
    sps: float | None
    sps_phase_timed: float | None  # of a single GPU, as printed: batch / sum of phase timers
    epoch_sps: tuple[float, ...]  # rates of the epochs whose mean is `sps`; () if only the mean is known
    calc_s: float | None
    comm_s: float | None
    epoch_s: float | None
    granularity_wall: float | None
    granularity_paper: float | None  # as printed, by phase timers
    egress_gb_per_vm_epoch: float | None
    epochs: int | None  # number of epochs in the published mean
    same_as: str | None  # the experiment with the same run, whose figures apply
    source: str


@cache
def models() -> dict[str, Model]:
    """Return all models by name."""
    return {
        r["name"]: Model(
            name=r["name"],
            parameters=int(r["parameters"]),
            kind=r["kind"],
            bytes_per_sample=int(r["bytes_per_sample"]) if r["bytes_per_sample"] else None,
            source=r["source"],
        )
        for r in _rows("models.csv")
    }


@cache
def step_times() -> dict[tuple[str, str], StepTime]:
    """Return all known step times by (model, accelerator)."""
    return {
        (r["model"], r["accelerator"]): StepTime(
            accelerator=r["accelerator"],
            model=r["model"],
            batch_size=int(r["batch_size"]),
            step_s=float(r["step_s"]),
            plain_step_s=float(r["plain_step_s"]),
            forward_share=float(r["forward_share"]),
            sync_work_s=float(r["sync_work_s"]),
            source=r["source"],
        )
        for r in _rows("accelerators.csv")
    }


def step_time(model: str, accelerator: str, *, plain: bool = False) -> StepTime | None:
    """Return the step time of a model on an accelerator ("ConvNextLarge", "T4:1"). None: unknown.

    `plain`: in a plain training loop, without a swarm.
    """
    found = step_times().get((model, accelerator))
    return replace(found, step_s=found.plain_step_s, sync_work_s=0.0) if found and plain else found


@cache
def published_runs() -> dict[str, Published]:
    """Return the paper's runs by the experiment's name, in the paper's order."""
    numbers = (
        "sps", "sps_phase_timed", "calc_s", "comm_s", "epoch_s", "granularity_wall", "granularity_paper",
        "egress_gb_per_vm_epoch",
    )  # fmt: skip
    rows = {r["experiment"]: r for r in _rows("published.csv")}
    found: dict[str, Published] = {}
    for name, own in rows.items():
        r = rows[own["same_as"]] if own["same_as"] else own
        found[name] = Published(
            experiment=name,
            run=own["run"],
            model=own["model"],
            vms=int(own["vms"]),
            vms_by_location=tuple(_place(part) for part in own["vms_by_location"].split()),
            epoch_sps=tuple(float(rate) for rate in r["epoch_sps"].split()),
            epochs=int(r["epochs"]) if r["epochs"] else None,
            same_as=own["same_as"] or None,
            source=own["source"],
            **{name: float(r[name]) if r[name] else None for name in numbers},
        )
    return found


def _place(text: str) -> tuple[str, int]:
    """Parse "gcp/us-central1:2" into the place and its number of VMs."""
    place, _, count = text.rpartition(":")
    return place, int(count)


def published(experiment: str) -> Published | None:
    """Return the paper's figures of an experiment by name ("geo-b2"). None if it has none."""
    return published_runs().get(experiment)


def price_books() -> tuple[str, ...]:
    """Return the names of the price books that ship with orch."""
    names = (f.name for f in files("cloud.prices").iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def networks() -> tuple[str, ...]:
    """Return the names of the networks that can be emulated."""
    return tuple(network_names())


def _rows(name: str) -> list[dict[str, str]]:
    with (_EXPERIMENTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
