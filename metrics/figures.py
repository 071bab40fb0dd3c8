"""Catalogue of figures: every number computed for a run, with its key, unit, labels and formula. Pure.

A key has the same meaning in every row, file and column. The tuples below the catalogue list the figures of each kind of
row, in order. To add a figure, add an entry here and the function that computes it. The figures that a study file may
name are listed in `experiments.study_file` (a separate format, which imports nothing from `metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from metrics.epochs.granularity import (
    calculation,
    communication,
    epoch_granularity,
    epoch_granularity_stall_free,
    granularity,
    granularity_of_means,
    granularity_phase_timed,
    granularity_stall_free,
    overlapped,
)
from metrics.epochs.throughput import (
    PeerEpoch,
    SwarmEpoch,
    dropped_rounds,
    epoch_seconds,
    local_throughput,
    throughput,
    throughput_epoch_mean,
    throughput_phase_timed,
)
from metrics.events.evaluation import held_out
from metrics.run import RunNumbers
from metrics.run_cost import usd_per_1m, whole
from metrics.run_traffic import egress_bytes_per_vm_epoch, intercontinental_bytes
from metrics.stats import Estimate


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run.

    A figure without a function needs more than the epoch records; `analysis.replay` computes it.
    """

    key: str
    name: str  # "communication"
    unit: str = ""  # as displayed; "": none
    meaning: str = ""  # describes the column in a table of runs
    epoch_meaning: str = ""  # describes the column in a table of epochs
    of_epochs: Callable[[Sequence[SwarmEpoch]], Estimate | None] | None = None  # over the measured epochs
    # Of one epoch, measured or not. None: tables of epochs do not have the figure.
    of_epoch: Callable[[SwarmEpoch], float | None] | None = None
    # Bytes and dollars: of all measured epochs, or of the given one.
    of_run: Callable[[RunNumbers, SwarmEpoch | None], float | None] | None = None
    shown_factor: float = 1.0  # converts a value to `unit`; 1e-9: from bytes to GB
    title: str = ""  # label in comparisons with the paper; "": name and unit
    column: str = ""  # table heading; "": name and unit
    paper_column: str = ""  # column of experiments/published.csv; "": not published
    paper_factor: float = 1.0  # converts the paper's unit to ours
    lower_is_better: bool = False
    short: str = ""  # label in a narrow column; "": the name
    if_known: bool = False  # omit from the headlines if unknown, as it is for most runs

    @property
    def stored_unit(self) -> str:
        """The unit of values that are not multiplied by `shown_factor`."""
        return self.unit if self.shown_factor == 1.0 else self.unit.replace("GB", "bytes")

    @property
    def heading(self) -> str:
        """Table heading, for example "communication, s"."""
        return self.column or ", ".join(filter(None, (self.name, self.unit)))

    @property
    def words(self) -> str:
        """Label for a sentence or a chart, for example "communication (s)"."""
        return self.title or (f"{self.name} ({self.unit})" if self.unit else self.name)

    @property
    def unit_of_run(self) -> str:
        """Unit of the mean over a run: seconds become seconds per epoch."""
        return "s per epoch" if self.unit == "s" else self.unit

    def value(self, run: RunNumbers, epoch: SwarmEpoch | None = None) -> float | None:
        """Return the value over the run's measured epochs, or of one epoch. None if unknown."""
        if self.of_epochs is not None:
            found = self.of_epochs(run.study if epoch is None else (epoch,))
            return None if found is None else found.value
        return None if self.of_run is None else self.of_run(run, epoch)


def _peer_mean(of: Callable[[PeerEpoch], float]) -> Callable[[SwarmEpoch], float | None]:
    """Return a function for the mean over an epoch's peers, which gives None for an epoch without peers."""
    return lambda epoch: math.fsum(map(of, epoch.peers)) / len(epoch.peers) if epoch.peers else None


def _whole_run(
    of: Callable[[RunNumbers], float | None],
) -> Callable[[RunNumbers, SwarmEpoch | None], float | None]:
    """A figure of the whole run, start-up and warm-up included; no epoch has one."""
    return lambda run, epoch: of(run) if epoch is None else None


def _float(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def _accuracy(run: RunNumbers) -> float | None:
    found = held_out(run.evaluation_rows)
    return None if found is None else found.accuracy


def _time_to_target_s(run: RunNumbers) -> float | None:
    reached = run.curve.reached(run.target)
    return None if reached is None else reached.trained_s


def _usd_to_target(run: RunNumbers) -> float | None:
    reached = run.curve.reached(run.target)
    return None if reached is None else _float(reached.usd)


_FIGURES = (
    Figure(
        "sps", "throughput", "samples/s", column="samples/s",
        meaning="ours: samples over time of the measured epochs",
        epoch_meaning="samples / epoch_s, in samples per second",
        of_epochs=throughput,
        of_epoch=lambda epoch: epoch.samples / epoch.duration_s if epoch.duration_s else None,
    ),
    Figure(
        "sps_epoch_mean", "mean of epoch rates", "samples/s", paper_column="sps",
        meaning="the paper's figure: mean of the epochs' rates",
        of_epochs=throughput_epoch_mean,
    ),
    Figure("sps_local", "throughput without communication", "samples/s", of_epochs=local_throughput),
    Figure(
        "sps_phase_timed", "throughput by phase timers", "samples/s", meaning="rate by phase timers",
        of_epochs=throughput_phase_timed,
    ),
    Figure("sps_wall", "throughput of one GPU", "samples/s", meaning="a single VM's rate by wall clock"),
    Figure(
        "granularity", "granularity, mean of the epochs' ratios", title="granularity, wall clock",
        column="granularity, mean of ratios", paper_column="granularity_wall",
        meaning="by wall clock: mean of calc_s / comm_s of each epoch",
        epoch_meaning="calc_s / comm_s of a peer, mean over the peers",
        of_epochs=granularity, of_epoch=epoch_granularity,  # what replays and comparisons with the paper print
    ),
    Figure("granularity_of_means", "granularity", of_epochs=granularity_of_means),  # calc_s / comm_s: the headline
    Figure(
        "granularity_stall_free", "granularity without stalls", short="stall-free", if_known=True,
        epoch_meaning="(calc_s - load_s) / comm_s of a peer, mean over the peers: without waiting for data",
        of_epochs=granularity_stall_free, of_epoch=epoch_granularity_stall_free,
    ),
    Figure(
        "granularity_phase_timed", "granularity", title="granularity, phase-timed", paper_column="granularity_paper",
        meaning="the paper's rule: phase timers / synchronising step",
        of_epochs=granularity_phase_timed,
    ),
    Figure(
        "calc_s", "calculation", "s", paper_column="calc_s", lower_is_better=True,
        meaning="mean per epoch", epoch_meaning="wall time outside the synchronising step, mean over the peers",
        of_epochs=calculation, of_epoch=_peer_mean(lambda p: p.calc_s),
    ),
    Figure(
        "comm_s", "communication", "s", paper_column="comm_s", lower_is_better=True,
        meaning="mean per epoch", epoch_meaning="wall time of the round, mean over the peers",
        of_epochs=communication, of_epoch=_peer_mean(lambda p: p.comm_s),
    ),
    Figure(
        "overlapped_s", "communication overlapped with calculation", "s", short="overlapped", if_known=True,
        epoch_meaning="part of comm_s during which the peers calculated (`swarm.overlap`)",
        of_epochs=overlapped, of_epoch=_peer_mean(lambda p: p.overlapped_s),
    ),
    Figure(
        "epoch_s", "epoch", "s", paper_column="epoch_s", lower_is_better=True,
        meaning="mean wall time between epoch ends", epoch_meaning="wall time since the end of the previous epoch",
        of_epochs=epoch_seconds, of_epoch=lambda epoch: epoch.duration_s,
    ),
    Figure(
        "egress_bytes_per_vm_epoch", "egress", "GB per VM and epoch", column="egress GB per VM and epoch",
        shown_factor=1e-9, lower_is_better=True,
        paper_column="egress_gb_per_vm_epoch", paper_factor=1e9, meaning="bytes, over the measured epochs",
        of_run=egress_bytes_per_vm_epoch,
    ),
    Figure(
        "intercontinental_bytes", "intercontinental egress", "GB per epoch", column="intercontinental GB per epoch",
        shown_factor=1e-9, lower_is_better=True, of_run=intercontinental_bytes,
    ),
    Figure("ingress_bytes_per_vm_h", "ingress", "GB per VM and hour", shown_factor=1e-9,
           meaning="bytes of training data per hour"),
    Figure("usd_per_1m", "VMs and egress", "$/1M samples", column="$/1M samples", lower_is_better=True, of_run=usd_per_1m),
    Figure("speedup", "speed-up", meaning="against the baseline of the same GPU and model, wall clock"),
    Figure("speedup_phase_timed", "speed-up", meaning="the same against the phase-timed baseline"),
    Figure(
        "usd_per_1m_samples", "cost of the whole run", "$/1M samples", lower_is_better=True,
        of_run=_whole_run(lambda run: _float(whole(run).usd_per_1m)),
    ),
    Figure("total_usd", "cost of the whole run", "$", lower_is_better=True,
           of_run=_whole_run(lambda run: _float(run.bill.sum()))),
    Figure("samples", "samples trained", of_run=_whole_run(lambda run: whole(run).samples or None)),
    Figure("preemptions", "preemptions", lower_is_better=True,
           of_run=_whole_run(lambda run: float(len(run.preemptions.rows)))),
    Figure("dropped_rounds", "dropped rounds", lower_is_better=True,
           of_run=_whole_run(lambda run: float(len(dropped_rounds(run.raw))))),
    Figure("accuracy", "held-out accuracy at the end", of_run=_whole_run(_accuracy)),
    Figure("time_to_target_s", "time to reach the target", "s", lower_is_better=True, if_known=True,
           meaning="training time until the held-out figure of `train.until.metric` was reached",
           of_run=_whole_run(_time_to_target_s)),
    Figure("usd_to_target", "cost to reach the target", "$", lower_is_better=True, if_known=True,
           meaning="dollars of the run until then", of_run=_whole_run(_usd_to_target)),
    Figure("loss", "training loss", lower_is_better=True),
    Figure("heldout_loss", "held-out loss", lower_is_better=True),
)  # fmt: skip

FIGURES = {figure.key: figure for figure in _FIGURES}

SUMMARY = tuple(figure.key for figure in _FIGURES if figure.of_epochs)
"""Keys of the run summary (`orch report -o json`) that have an interval."""
HEADLINES = ("sps", "granularity_of_means", "granularity_stall_free", "calc_s", "comm_s", "overlapped_s")
"""Figures shown first: the report's cards, the notebook table, the last lines of `orch launch`.

Granularity is here the ratio of the two figures after it. `granularity`, the mean of the epochs' ratios, is what replays and
comparisons with the paper print; they differ if some epochs had hardly any communication.
"""
EPOCH = ("calc_s", "comm_s", "overlapped_s", "epoch_s", "sps", "granularity", "granularity_stall_free")
"""Columns of a table of epochs."""
REPLAY = (
    "sps_epoch_mean", "sps", "n_epochs", "sps_low", "sps_high", "granularity_phase_timed", "granularity", "calc_s", "comm_s",
    "epoch_s", "egress_bytes_per_vm_epoch", "ingress_bytes_per_vm_h", "sps_wall", "sps_phase_timed", "speedup",
    "speedup_phase_timed",
)  # fmt: skip
"""Keys of a row of `orch replay`: figures, plus the number of measured epochs and the 95 % interval of `sps`."""
PAPER = (
    "sps_epoch_mean", "calc_s", "comm_s", "epoch_s", "granularity", "granularity_phase_timed", "egress_bytes_per_vm_epoch",
)  # fmt: skip
"""Figures that the paper published."""


RUN_AGAINST_RUN = (
    "sps", "sps_epoch_mean", "granularity_of_means", "granularity", "calc_s", "comm_s", "overlapped_s", "epoch_s",
    "egress_bytes_per_vm_epoch", "intercontinental_bytes", "usd_per_1m", "usd_per_1m_samples", "total_usd", "samples",
    "preemptions", "dropped_rounds", "accuracy", "time_to_target_s", "usd_to_target",
)  # fmt: skip
"""What `orch compare` shows of runs next to each other, beside losses at equal samples."""
TO_TARGET = ("time_to_target_s", "usd_to_target")
"""Those that runs have in common only if they have the same target."""
OF_WHOLE_RUN = (
    "usd_per_1m_samples", "total_usd", "samples", "preemptions", "dropped_rounds", "accuracy", *TO_TARGET,
)  # fmt: skip
"""Those of them that are of the whole run, not of its measured epochs."""
COUNTS_AND_SHARES = ("preemptions", "dropped_rounds", "accuracy")
"""Those whose difference is told, not their ratio."""


def headlines(summary: Mapping[str, Any], *more: str) -> list[tuple[Figure, Mapping[str, Any] | None]]:
    """Return the headline figures, then `more`, each with its entry of a run's summary. None: unknown."""
    found = [(FIGURES[key], summary.get(key)) for key in (*HEADLINES, *more)]
    return [(figure, estimate) for figure, estimate in found if estimate or not figure.if_known]


def compared_figure(key: str) -> Figure:
    """Return the figure that a comparison calls `key`. There, `sps` is the mean of the epochs' rates, as in the paper."""
    return FIGURES["sps_epoch_mean" if key == "sps" else key]
