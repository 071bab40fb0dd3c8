"""The catalogue of figures: each number of a run by its key, with its unit, its words and how it is computed. Pure.

A key means the same in every row, file and column. The tuples below the catalogue say which rows have which figures, in
their order. A new figure is an entry here and the function that computes it. What a study file may name is listed in
`experiments.study_file` (a format of its own, which imports nothing of `metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.epochs.granularity import (
    calculation,
    communication,
    epoch_granularity,
    granularity,
    granularity_of_means,
    granularity_phase_timed,
    overlapped,
)
from metrics.epochs.throughput import (
    PeerEpoch,
    SwarmEpoch,
    epoch_seconds,
    local_throughput,
    throughput,
    throughput_epoch_mean,
    throughput_phase_timed,
)
from metrics.run import RunNumbers
from metrics.run_cost import usd_per_1m
from metrics.run_traffic import egress_bytes_per_vm_epoch, intercontinental_bytes
from metrics.stats import Estimate


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run. Without a function it needs more than the epochs' records (`analysis.replay` computes it)."""

    key: str
    name: str  # "communication"
    unit: str = ""  # as shown; "": none
    meaning: str = ""  # of the column in a table of runs
    epoch_meaning: str = ""  # of the column in a table of epochs
    of_epochs: Callable[[Sequence[SwarmEpoch]], Estimate | None] | None = None  # over those that are measured
    of_epoch: Callable[[SwarmEpoch], float | None] | None = (
        None  # any epoch's; None: no table of epochs has it
    )
    of_run: Callable[[RunNumbers, SwarmEpoch | None], float | None] | None = (
        None  # bytes and dollars, of all measured epochs or of one
    )
    shown_factor: float = 1.0  # to `unit`
    title: str = ""  # beside the paper's; "": name and unit
    column: str = ""  # a table's heading; "": name and unit
    paper_column: str = ""  # of experiments/published.csv; "": the paper has none
    paper_factor: float = 1.0  # from the paper's unit to ours
    lower_is_better: bool = False
    short: str = ""  # in a narrow column; "": its name
    if_known: bool = False  # a headline leaves it out where it is unknown: most runs have none

    @property
    def heading(self) -> str:
        """A table's heading: "communication, s"."""
        return self.column or ", ".join(filter(None, (self.name, self.unit)))

    @property
    def words(self) -> str:
        """Name and unit in a sentence or a chart: "communication (s)"."""
        return self.title or (f"{self.name} ({self.unit})" if self.unit else self.name)

    @property
    def unit_of_run(self) -> str:
        """The unit of a run's mean: seconds are those of an epoch."""
        return "s an epoch" if self.unit == "s" else self.unit

    def value(self, run: RunNumbers, epoch: SwarmEpoch | None = None) -> float | None:
        """Over a run's measured epochs, or of one of them; None: unknown."""
        if self.of_epochs is not None:
            found = self.of_epochs(run.study if epoch is None else (epoch,))
            return None if found is None else found.value
        return None if self.of_run is None else self.of_run(run, epoch)


def _peer_mean(of: Callable[[PeerEpoch], float]) -> Callable[[SwarmEpoch], float | None]:
    """Mean over an epoch's peers; None without one."""
    return lambda epoch: math.fsum(map(of, epoch.peers)) / len(epoch.peers) if epoch.peers else None


_FIGURES = (
    Figure(
        "sps", "throughput", "samples/s", column="samples/s",
        meaning="ours: samples over time of the measured epochs",
        epoch_meaning="samples / epoch_s, in samples per second",
        of_epochs=throughput,
        of_epoch=lambda epoch: epoch.samples / epoch.duration_s if epoch.duration_s else None,
    ),
    Figure(
        "sps_epoch_mean", "throughput", "samples/s", column="samples/s", paper_column="sps",
        meaning="the study's figure: mean of the epochs' rates",
        of_epochs=throughput_epoch_mean,
    ),
    Figure("sps_local", "throughput without communication", "samples/s", of_epochs=local_throughput),
    Figure(
        "sps_phase_timed", "throughput by phase timers", "samples/s", meaning="its rate by phase timers",
        of_epochs=throughput_phase_timed,
    ),
    Figure("sps_wall", "throughput of one GPU", "samples/s", meaning="a single VM's rate by wall clock"),
    Figure(
        "granularity", "granularity", title="granularity, wall clock", paper_column="granularity_wall",
        meaning="wall clock", epoch_meaning="calc_s / comm_s of a peer, mean over the peers",
        of_epochs=granularity, of_epoch=epoch_granularity,  # the mean of ratios: what replays and comparisons print
    ),
    Figure("granularity_of_means", "granularity", of_epochs=granularity_of_means),  # calc_s / comm_s: the headline
    Figure(
        "granularity_phase_timed", "granularity", title="granularity, phase-timed", paper_column="granularity_paper",
        meaning="the study's rule: phase timers / synchronising step",
        of_epochs=granularity_phase_timed,
    ),
    Figure(
        "calc_s", "calculation", "s", paper_column="calc_s", lower_is_better=True,
        meaning="mean an epoch", epoch_meaning="wall time outside the synchronising step, mean over the peers",
        of_epochs=calculation, of_epoch=_peer_mean(lambda p: p.calc_s),
    ),
    Figure(
        "comm_s", "communication", "s", paper_column="comm_s", lower_is_better=True,
        meaning="mean an epoch", epoch_meaning="wall time of the round, mean over the peers",
        of_epochs=communication, of_epoch=_peer_mean(lambda p: p.comm_s),
    ),
    Figure(
        "overlapped_s", "of it behind calculation", "s", short="of it hidden", if_known=True,
        epoch_meaning="of comm_s, while the peers calculated (`swarm.overlap`)",
        of_epochs=overlapped, of_epoch=_peer_mean(lambda p: p.overlapped_s),
    ),
    Figure(
        "epoch_s", "epoch", "s", paper_column="epoch_s", lower_is_better=True,
        meaning="mean wall time between epoch ends", epoch_meaning="wall time since the end of the epoch before",
        of_epochs=epoch_seconds, of_epoch=lambda epoch: epoch.duration_s,
    ),
    Figure(
        "egress_bytes_per_vm_epoch", "egress", "GB per VM and epoch", column="egress GB a VM and epoch",
        shown_factor=1e-9, lower_is_better=True,
        paper_column="egress_gb_per_vm_epoch", paper_factor=1e9, meaning="bytes, over the measured epochs",
        of_run=egress_bytes_per_vm_epoch,
    ),
    Figure(
        "intercontinental_bytes", "intercontinental egress", "GB an epoch", column="intercontinental GB an epoch",
        shown_factor=1e-9, lower_is_better=True, of_run=intercontinental_bytes,
    ),
    Figure("ingress_bytes_per_vm_h", "ingress", "GB per VM and hour", shown_factor=1e-9,
           meaning="bytes of training data an hour"),
    Figure("usd_per_1m", "cost", "$/1M samples", column="$/1M samples", lower_is_better=True, of_run=usd_per_1m),
    Figure("speedup", "speed-up", meaning="against the baseline of the same GPU and model, wall clock"),
    Figure("speedup_phase_timed", "speed-up", meaning="the same against the phase-timed baseline"),
    Figure("loss", "training loss", lower_is_better=True),
    Figure("heldout_loss", "held-out loss", lower_is_better=True),
)  # fmt: skip

FIGURES = {figure.key: figure for figure in _FIGURES}

SUMMARY = tuple(figure.key for figure in _FIGURES if figure.of_epochs)
"""Keys of a run's summary (`orch report -o json`) with an interval."""
HEADLINES = ("sps", "granularity_of_means", "calc_s", "comm_s", "overlapped_s")
"""What a reader sees first: the report's cards, a notebook's table, the end of `orch launch`.

Granularity is here the ratio of the two figures after it. `granularity`, the mean of the epochs' ratios, stays what a replay
and a comparison with the paper print: one epoch with hardly any communication makes the two differ.
"""
EPOCH = ("calc_s", "comm_s", "overlapped_s", "epoch_s", "sps", "granularity")
"""Columns of a table of epochs."""
REPLAY = (
    "sps_epoch_mean", "sps", "n_epochs", "sps_low", "sps_high", "granularity_phase_timed", "granularity", "calc_s", "comm_s",
    "epoch_s", "egress_bytes_per_vm_epoch", "ingress_bytes_per_vm_h", "sps_wall", "sps_phase_timed", "speedup",
    "speedup_phase_timed",
)  # fmt: skip
"""Keys of a row of `orch replay`: figures, and of `sps` the measured epochs and the 95 % interval."""
PAPER = (
    "sps_epoch_mean", "calc_s", "comm_s", "epoch_s", "granularity", "granularity_phase_timed", "egress_bytes_per_vm_epoch",
)  # fmt: skip
"""Figures that the paper published."""


def headlines(summary: Mapping[str, Any], *more: str) -> list[tuple[Figure, Mapping[str, Any] | None]]:
    """The headline figures, then `more`, with what a run's summary has of them; None: unknown."""
    found = [(FIGURES[key], summary.get(key)) for key in (*HEADLINES, *more)]
    return [(figure, estimate) for figure, estimate in found if estimate or not figure.if_known]


def compared_figure(key: str) -> Figure:
    """The figure that a comparison calls `key`: its `sps` is the mean of the epochs' rates, as the paper's is."""
    return FIGURES["sps_epoch_mean" if key == "sps" else key]
