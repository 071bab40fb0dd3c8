"""Reads a run (our own or imported) and computes its row of figures for `orch replay`.

Every null in a row is explained by a sentence. Figures are those of `metrics.figures` at full scale (imported runs:
the logs' own scale); docs/replay.md lists the keys.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from metrics.epochs.granularity import granularity_phase_timed
from metrics.epochs.scaling import full_scale_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, measured, throughput
from metrics.figures import FIGURES, REPLAY
from metrics.paper.rules import RULE_COLUMNS, SINGLE_COLUMNS, paper_granularity, single_rates
from metrics.provenance import UNKNOWN_ORIGIN, RanOn
from metrics.records import IngressRecord, SwarmEpochRecord
from metrics.run import RunNumbers
from metrics.run_traffic import egress_bytes_per_vm_epoch, peer_flows
from metrics.stats import Estimate, mean_interval
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta
from metrics.warnings import sentences

KEYS = (
    "label", "run_id", "model", "peers", "tbs", *REPLAY, "target", "emulated", "scales", "host_contended", "warnings",
)  # fmt: skip

_OF_EPOCHS = tuple(figure for figure in FIGURES.values() if figure.of_epoch)
_EPOCH_KEYS = ", ".join(
    key
    for key in REPLAY
    if key in ("sps_low", "sps_high") or (key in FIGURES and (FIGURES[key].of_epoch or FIGURES[key].of_run))
)
_SWARM_KEYS = (
    f"{_EPOCH_KEYS}, sps_epoch_mean, n_epochs, granularity_phase_timed, speedup and speedup_phase_timed"
)
_RULE_TIMERS = ("dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step")  # in the columns' names
_SPEEDUPS = (("speedup", "sps", "sps_wall"), ("speedup_phase_timed", "sps_epoch_mean", "sps_phase_timed"))
"""(speed-up, rate of the swarm, rate of the single GPU), each on the clocks of its definition."""
_FULL = 0.98  # VMs whose samples sum to less than this share of the target are not the whole swarm


class Store(Protocol):
    """The part of `metrics.store.database.RunStore` that is used here."""

    def records(self, table: str) -> list[Any]: ...

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]: ...

    def run_meta(self) -> RunMeta: ...


@dataclass(frozen=True)
class RunRow:
    """The figures of one run. None: unknown or not applicable, explained in `warnings` or `not_applicable`."""

    label: str | None
    run_id: str
    model: str | None
    peers: int
    tbs: int | None
    baseline: bool  # a single VM without a swarm
    accelerators: tuple[str, ...]  # each kind once, sorted: ("T4:1",)
    locations: Mapping[str, str]  # by VM
    figures: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])  # by `FIGURES`; absent: None
    n_epochs: int | None = None
    ran: RanOn = UNKNOWN_ORIGIN
    warnings: tuple[str, ...] = ()
    not_applicable: tuple[str, ...] = field(
        default=()
    )  # why figures that do not apply to such a run are null

    @property
    def gpu(self) -> str | None:
        """The accelerator that all VMs have; None if they differ or it is unknown."""
        return self.accelerators[0] if len(self.accelerators) == 1 and self.accelerators[0] else None

    def value(self, key: str) -> float | None:
        """A figure's value without its interval."""
        found = self.figures.get(key)
        return found.value if found else None

    def to_json(self) -> dict[str, Any]:
        """Return the row with exactly `KEYS`, in their order."""
        values: dict[str, Any] = {
            key: self.value(key) if key in FIGURES else getattr(self, key, getattr(self.ran, key, None))
            for key in KEYS
        }
        sps = self.figures.get("sps")
        low, high = (sps.low, sps.high) if sps else (None, None)
        warnings = [*self.warnings, *self.not_applicable, *self.ran.unknown]
        return values | {"sps_low": low, "sps_high": high, "warnings": warnings}


@dataclass(frozen=True)
class ReadRun:
    """A run's numbers and its row, the input of reports and comparisons."""

    run: RunNumbers
    row: RunRow  # without speed-ups, which need the baselines (`with_speedups`)


def replay_rows(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return the JSON rows of runs, with speed-ups over the baselines among them."""
    return [row.to_json() for row in with_speedups(rows)]


def read_folder(folder: Path) -> ReadRun:
    """Read the run of a folder with `run.db`. Raises metrics.store.database.StoreError."""
    with RunStore.open_reader(folder / "run.db") as store:
        return read_run(store)


def read_run(store: Store) -> ReadRun:
    """Read one run's numbers and compute its row. Raises metrics.store.database.StoreError."""
    run = RunNumbers.of(store)
    model, target = run.meta.model, run.meta.target_batch_size
    row = RunRow(
        label=_label(run),
        run_id=str(run.meta.run_id),
        model=model.name if model else None,
        peers=len({vm.slot for vm in run.vms}),
        tbs=int(target) if target else None,
        baseline=run.meta.logs.baseline,
        accelerators=tuple(sorted({vm.accelerator for vm in run.vms})),
        locations={vm.vm: vm.location for vm in run.vms},
        ran=RanOn.of(run.meta),
    )
    return ReadRun(run, _baseline(row, run, store) if row.baseline else _swarm(row, run, store))


def with_speedups(rows: Sequence[RunRow]) -> list[RunRow]:
    """Add both speed-ups to the rows, each over the baselines of the same GPU and model among `rows`.

    `speedup` is sps / sps_wall (one clock), `speedup_phase_timed` is sps_epoch_mean / sps_phase_timed (the
    paper's two clocks). If there are several such baselines, their mean is used and a warning says so.
    """
    baselines: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        if row.baseline and row.gpu and row.model:
            baselines.setdefault((row.gpu, row.model), []).append(row)
    return [row if row.baseline else _sped_up(row, baselines) for row in rows]


def _sped_up(row: RunRow, baselines: Mapping[tuple[str, str], Sequence[RunRow]]) -> RunRow:
    def without(reason: str) -> RunRow:
        sentence = f"speedup and speedup_phase_timed are null: {reason}."
        return replace(row, warnings=(*row.warnings, sentence))

    if len(row.accelerators) > 1:
        return without(
            f"the peers have different GPUs ({', '.join(a or 'unknown' for a in row.accelerators)})"
        )
    if row.gpu is None or row.model is None:
        return without(f"the run's {'GPU' if row.gpu is None else 'model'} is unknown")
    same = baselines.get((row.gpu, row.model), ())
    if not same:
        return without(f"there is no single-VM run of {row.model} on {row.gpu} among the given runs")
    notes: list[str] = []
    if len(same) > 1:
        notes.append(
            f"The speed-ups are over the mean of {len(same)} baselines: {', '.join(b.run_id for b in same)}."
        )
    figures = dict(row.figures)
    for key, rate, alone in _SPEEDUPS:
        base = mean_interval([b.figures[alone].value for b in same if alone in b.figures])
        if rate not in figures or base is None:
            lacking = f"the {alone} of the baseline" if rate in figures else rate
            notes.append(f"{key} is null: {lacking} is unknown.")
        else:
            figures[key] = _speedup(figures[rate], base.value)
    return replace(row, figures=figures, warnings=(*row.warnings, *notes))


def _speedup(rate: Estimate, alone: float) -> Estimate:
    """The speed-up with the rate's interval, which ignores the spread of the baseline."""
    ratio = rate.value / alone
    factor = ratio / rate.value if rate.value else 0.0
    low, high = (None if end is None else end * factor for end in (rate.low, rate.high))
    return Estimate(ratio, low, high, rate.n)


def _label(run: RunNumbers) -> str | None:
    """The index's label; for our own runs the experiment's name."""
    return run.meta.label if run.meta.imported or run.meta.label else run.meta.document.get("name")


def _baseline(row: RunRow, run: RunNumbers, store: Store) -> RunRow:
    warnings = [str(text) for text in run.meta.warnings]
    if row.label is None:
        warnings.append("label is null: no index lists the run.")
    wall = timed = None
    lacking: dict[str, str] = {}
    if row.peers > 1:
        warnings.append(
            f"sps_wall and sps_phase_timed are null: the run has logs of {row.peers} VMs, not of a single one."
        )
    else:
        rates = single_rates(store.columns("steps", SINGLE_COLUMNS))
        wall, timed = rates.sps_wall, rates.sps_phase_timed
        lacking = _unlogged(run, (*_RULE_TIMERS, "dataload"))
        if lacking:
            timed = None
        if wall is None:
            warnings.append("sps_wall is null: the log has no wall time after its first tenth of steps.")
        if timed is None:
            reason = next(iter(lacking.values()), "the log has no step with phase timers")
            warnings.append(f"sps_phase_timed is null: {reason}.")
    read, seconds = _baseline_ingress(run, store)
    per_h = None if read is None or seconds <= 0 else read / seconds * 3600
    if per_h is None:
        warnings.append("ingress_bytes_per_vm_h is null: the log has no counter of received bytes.")
    found = {"sps_wall": wall, "sps_phase_timed": timed, "ingress_bytes_per_vm_h": _plain(per_h, None)}
    return replace(
        row,
        figures=_known(found),
        warnings=tuple(warnings),
        not_applicable=(f"A single VM has no hivemind epochs: {_SWARM_KEYS} are null.",),
    )


def _baseline_ingress(run: RunNumbers, store: Store) -> tuple[int | None, float]:
    """Bytes read, and seconds from the first step to the end of the log."""
    records: list[IngressRecord] = store.records("ingress")
    seconds = sum((vm.ended_s or 0.0) - vm.ready_s for vm in run.vms if vm.ready_s is not None and vm.ended_s)
    return (sum(r.network_bytes for r in records) if records else None), seconds


def _swarm(row: RunRow, run: RunNumbers, store: Store) -> RunRow:
    warnings = sentences(run, money=False)
    if row.label is None:
        warnings.append("label is null: no index lists the run.")
    watched: list[SwarmEpochRecord] = store.records("swarm_epochs")
    chosen = measured(run.study)
    rates, reasons = _epoch_mean(run, bool(watched))
    warnings += reasons
    peers = _peers(row.peers, store)
    sps, reasons = _sps(replace(row, peers=peers), run, chosen, bool(watched))
    warnings += reasons
    timed, reasons = _phase_timed(run, store)
    warnings += reasons
    figures = {figure.key: figure.of_epochs(run.study) for figure in _OF_EPOCHS if figure.of_epochs}
    if chosen and figures["calc_s"] is None:
        warnings.append("calc_s, comm_s and granularity are null: no VM's log covers a measured epoch.")
    elif chosen and figures["granularity"] is None:
        warnings.append("granularity is null: no communication was found in the measured epochs.")
    egress, reasons = _egress(run, chosen)
    warnings += reasons
    ingress, reasons = _ingress(run, store, chosen)
    warnings += reasons
    n_epochs = len(chosen) if sps is not None or rates is None else rates.n
    figures |= {
        "sps_epoch_mean": rates,
        "sps": sps,
        "granularity_phase_timed": _plain(timed, n_epochs),
        "egress_bytes_per_vm_epoch": _plain(egress, n_epochs),
        "ingress_bytes_per_vm_h": _plain(ingress, n_epochs),
    }
    return replace(
        row,
        peers=peers,
        figures=_known(figures),
        n_epochs=n_epochs,
        warnings=tuple(dict.fromkeys(warnings)),
        not_applicable=("sps_wall and sps_phase_timed are null: they apply to a single VM without a swarm.",),
    )


def _known(figures: Mapping[str, Estimate | None]) -> dict[str, Estimate]:
    return {key: value for key, value in figures.items() if value is not None}


def _plain(value: float | None, n: int | None) -> Estimate | None:
    return None if value is None else Estimate(value, None, None, n or 0)


def _epoch_mean(run: RunNumbers, watched: bool) -> tuple[Estimate | None, list[str]]:
    """The authors' throughput (the mean of all logged rates but the first), and why it is null."""
    if not watched:
        if run.meta.imported:
            saw = run.meta.imported.monitor
            why = "no epoch ended while the monitor ran" if saw else "there is no monitor log"
            return None, [f"sps_epoch_mean is null: {why}, and only the monitor logs the epochs' rates."]
        return run.epoch_mean(), []
    mean = run.epoch_mean()
    if mean is None:
        return None, ["sps_epoch_mean is null: the monitor logged no rate above 0 after the warm-up."]
    return mean, []


def _sps(
    row: RunRow, run: RunNumbers, chosen: Sequence[SwarmEpoch], watched: bool
) -> tuple[Estimate | None, list[str]]:
    if not chosen:
        return None, [f"{_EPOCH_KEYS} and ingress_bytes_per_vm_h are null: no epoch is measured."]
    if run.meta.imported and not watched:
        # Only the VMs' own samples are known, which are not the swarm's if a VM's log is missing.
        reason = ""
        samples = math.fsum(e.samples for e in chosen) / len(chosen)
        if row.peers > len(run.vms):
            reason = f"{row.peers} peers averaged according to the VMs, but only {len(run.vms)} have logs"
        elif row.tbs and samples < _FULL * row.tbs:
            reason = f"the VMs' logs have {samples:.0f} of {row.tbs} samples per epoch, so some VM's log is missing"
        if reason:
            return None, [f"sps, sps_low and sps_high are null: {reason}."]
    reasons = ["sps_low and sps_high are null: one epoch has no interval."] if len(chosen) == 1 else []
    return throughput(run.study), reasons


def _phase_timed(run: RunNumbers, store: Store) -> tuple[float | None, list[str]]:
    """The authors' granularity. Their rule works on raw steps; for a scaled run it is computed from the epochs."""
    if not run.terms.scales.none:
        scaled = granularity_phase_timed(run.study)
        return None if scaled is None else scaled.value, [
            "granularity_phase_timed is computed from the full-scale epochs: the authors' rule does not support scales."
        ]
    found = paper_granularity(store.columns("steps", RULE_COLUMNS))
    lacking = _unlogged(run, _RULE_TIMERS)
    by_vm = {vm: value for vm, value in found.by_vm.items() if vm not in lacking}
    why: dict[str, list[str]] = {}
    for vm, reason in sorted({**found.without, **lacking}.items()):
        why.setdefault(reason, []).append(vm)
    warnings = [
        f"The authors' rule gives no granularity for {', '.join(vms)}: {reason}."
        for reason, vms in why.items()
    ]
    mean = mean_interval(list(by_vm.values()))
    if mean is None:
        warnings.append(
            f"granularity_phase_timed is null: {'no VM has one' if why else 'there are no steps'}."
        )
    return None if mean is None else mean.value, warnings


def _unlogged(run: RunNumbers, timers: Sequence[str]) -> dict[str, str]:
    """VMs whose logs lack a column of one of `timers`, with the reason. Its values are unknown, not 0."""
    missing = run.meta.logs.missing_columns or {}
    found = {
        vm: [c for c in columns if any(timer in c for timer in timers)] for vm, columns in missing.items()
    }
    return {vm: f"its log has no {', '.join(columns)}" for vm, columns in found.items() if columns}


def _egress(run: RunNumbers, chosen: Sequence[SwarmEpoch]) -> tuple[float | None, list[str]]:
    """Bytes to other peers per VM and measured epoch. VMs without counted bytes are excluded and named."""
    if not chosen:
        return None, []
    found = egress_bytes_per_vm_epoch(run)
    turns = {p.vm for e in chosen for p in e.peers}
    if found is None:
        why = "no VM has a log" if not turns else "no VM's sent bytes were counted"
        return None, [f"egress_bytes_per_vm_epoch is null: {why}."]
    missing = sorted(turns - {f.src for f in peer_flows(run, chosen)})
    left_out = f"The sent bytes of {', '.join(missing)} were not counted and are not in the mean."
    return found, [left_out] if missing else []


def _ingress(run: RunNumbers, store: Store, chosen: Sequence[SwarmEpoch]) -> tuple[float | None, list[str]]:
    """Bytes read from the data store per VM-hour of the measured epochs."""
    records: list[IngressRecord] = store.records("ingress")
    read = {(r.vm, r.epoch): r.network_bytes for r in records}
    amounts: list[float | None] = []
    seconds = 0.0
    if not chosen:
        return None, []
    for epoch in chosen:
        for p in epoch.peers:
            if (p.vm, epoch.epoch) in read:
                raw = read[p.vm, epoch.epoch]
                amounts.append(
                    full_scale_ingress_bytes(raw, p.samples, run.terms.bytes_per_sample, run.terms.scales)
                )
                seconds += p.wall_s
    if not amounts or seconds <= 0:
        return None, [
            "ingress_bytes_per_vm_h is null: no VM's received bytes were counted in a measured epoch."
        ]
    known = [n for n in amounts if n is not None]
    if len(known) < len(amounts):
        return None, ["ingress_bytes_per_vm_h is null: the sample size of the modelled dataset is unknown."]
    return math.fsum(known) / seconds * 3600, []


def _peers(logged: int, store: Store) -> int:
    """Number of peers in the swarm: the logged VMs, or the count that the monitor (otherwise the VMs) recorded most
    often, if that is larger."""
    progress, epochs = store.columns("progress", ("vm", "peers")), store.columns("epochs", ("group_size",))
    seen = [n for vm, n in zip(progress["vm"], progress["peers"], strict=True) if vm == ""]
    counts = Counter(seen or epochs["group_size"])
    return max(logged, max(counts, key=lambda n: (counts[n], n), default=logged))
