"""What we know by name: models, accelerators' step times, the study's results, price books, networks.

The data lie beside this package (`models.csv`, `accelerators.csv`, `published.csv`); each row has its source.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from cloud.networks.network import network_names

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
"""SkyPilot's names of the accelerators we know, and CPU: no accelerator."""


@dataclass(frozen=True, slots=True)
class Model:
    """One row of models.csv."""

    name: str
    parameters: int
    kind: str  # vision, language, speech, digits
    bytes_per_sample: int | None  # of the study's data set as streamed; None: unknown
    source: str


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one accelerator takes over one step of one model, by wall clock."""

    accelerator: str  # "T4:1"
    model: str
    batch_size: int  # samples of the step the times below are of
    step_s: float  # in a swarm
    plain_step_s: float  # a plain PyTorch loop
    forward_share: float  # of the step
    sync_work_s: float  # the VM's own work around a round: gradient copies, offloaded optimizer
    source: str

    @property
    def padded(self) -> bool:
        """Whether an emulated step lasts as long as this; without an accelerator it lasts what it does."""
        return not self.accelerator.startswith("CPU:")

    def forward_s(self, batch_size: int) -> float:
        """Forward's part of a step of so many samples; a step is taken as linear in its samples."""
        return self.step_s * self.forward_share * batch_size / self.batch_size

    def backward_s(self, batch_size: int) -> float:
        """Backward's part of a step of so many samples."""
        return self.step_s * (1 - self.forward_share) * batch_size / self.batch_size


@dataclass(frozen=True, slots=True)
class Published:
    """The study's figures of one experiment, by wall clock; at its own scale. None: not published."""

    experiment: str  # "geo-b2-nlp"
    run: str  # "B-2 NLP"
    model: str
    vms: int
    vms_by_location: tuple[tuple[str, int], ...]  # ("gcp/us-central1", 1), ...
    sps: float | None
    sps_phase_timed: float | None  # of a GPU alone, as printed: batch / sum of phase timers
    epoch_sps: tuple[float, ...]  # the epochs whose mean `sps` is; () where only the mean is known
    calc_s: float | None
    comm_s: float | None
    epoch_s: float | None
    granularity_wall: float | None
    granularity_paper: float | None  # as printed: on another basis
    egress_gb_per_vm_epoch: float | None
    epochs: int | None  # the published figure is the mean of so many
    same_as: str | None  # the experiment whose run, and whose figures, this one's are
    source: str


@cache
def models() -> dict[str, Model]:
    """All models by name."""
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
    """All known step times by (model, accelerator)."""
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
    """The step time of a pair ("ConvNextLarge", "T4:1"); None: unknown. `plain`: in a plain loop, without a swarm."""
    found = step_times().get((model, accelerator))
    return replace(found, step_s=found.plain_step_s, sync_work_s=0.0) if found and plain else found


@cache
def published_runs() -> dict[str, Published]:
    """All of the study's runs by the experiment's name, in its order."""
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
    """ "gcp/us-central1:2" -> the place and its VMs."""
    place, _, count = text.rpartition(":")
    return place, int(count)


def published(experiment: str) -> Published | None:
    """The study's figures of an experiment by name ("geo-b2"); None where it has none."""
    return published_runs().get(experiment)


def price_books() -> tuple[str, ...]:
    """Names of the price books that ship with orch."""
    names = (f.name for f in files("cloud.prices").iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def networks() -> tuple[str, ...]:
    """Names of the networks that can be emulated."""
    return tuple(network_names())


def _rows(name: str) -> list[dict[str, str]]:
    with (_EXPERIMENTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
