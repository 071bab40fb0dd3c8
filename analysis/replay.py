"""One row of numbers a run, ours or somebody's imported logs, with everything that is null explained.

Keys as in docs/replay.md; numbers at the study's scale (imported runs: the logs' own), all by functions of `metrics`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from metrics.epochs import granularity as granularities
from metrics.epochs.scaling import study_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, epoch_seconds, measured, throughput
from metrics.paper.rules import RULE_COLUMNS, SINGLE_COLUMNS, single_rates, study_granularity
from metrics.provenance import NOBODY_KNOWS, RanOn
from metrics.records import IngressRecord, SwarmEpochRecord
from metrics.run import RunNumbers
from metrics.stats import Estimate, mean_interval
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta
from metrics.traffic import traffic
from metrics.warnings import sentences

KEYS = (
    "label", "run_id", "model", "peers", "tbs", "sps_epoch_mean", "sps", "n_epochs", "sps_low", "sps_high",
    "granularity_phase_timed", "granularity", "calc_s", "comm_s", "epoch_s", "egress_bytes_per_vm_epoch", "ingress_bytes_per_vm_h",
    "sps_wall", "sps_phase_timed", "speedup", "speedup_phase_timed", "target", "emulated", "scales", "host_contended", "warnings",
)  # fmt: skip

_EPOCH_KEYS = "sps, sps_low, sps_high, granularity, calc_s, comm_s, epoch_s, egress_bytes_per_vm_epoch"
_SWARM_KEYS = (
    f"{_EPOCH_KEYS}, sps_epoch_mean, n_epochs, granularity_phase_timed, speedup and speedup_phase_timed"
)
_RULE_TIMERS = ("dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step")  # in the columns' names
_FULL = 0.98  # peers whose samples reach less than this share of the target are not all of the swarm


class Store(Protocol):
    """What of `metrics.store.database.RunStore` is read here."""

    def records(self, table: str) -> list[Any]: ...

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]: ...

    def run_meta(self) -> RunMeta: ...


@dataclass(frozen=True)
class RunRow:
    """The numbers of one run. None: unknown or not applicable; `warnings` and `not_applicable` say why."""

    label: str | None
    run_id: str
    model: str | None
    peers: int
    tbs: int | None
    baseline: bool  # one VM alone, without a swarm
    accelerators: tuple[str, ...]  # each kind once, sorted: ("T4:1",)
    locations: Mapping[str, str]  # by VM
    sps_epoch_mean: Estimate | None = None  # the authors' figure: mean of all logged rates but the first
    sps: Estimate | None = None  # samples over time of the measured epochs
    n_epochs: int | None = None
    granularity_phase_timed: float | None = None  # the authors' rule
    granularity: Estimate | None = None
    calc_s: Estimate | None = None
    comm_s: Estimate | None = None
    epoch_s: Estimate | None = None
    egress_bytes_per_vm_epoch: float | None = None
    ingress_bytes_per_vm_h: float | None = None
    sps_wall: Estimate | None = None  # of a baseline
    sps_phase_timed: Estimate | None = None  # of a baseline
    speedup: float | None = None
    speedup_phase_timed: float | None = None
    ran: RanOn = NOBODY_KNOWS
    warnings: tuple[str, ...] = ()
    not_applicable: tuple[str, ...] = field(default=())  # why numbers are null that such a run never has

    @property
    def gpu(self) -> str | None:
        """The one kind of accelerator of all VMs; None when they differ or it is not known."""
        return self.accelerators[0] if len(self.accelerators) == 1 and self.accelerators[0] else None

    def to_json(self) -> dict[str, Any]:
        """The row with exactly `KEYS`, in their order."""
        known: dict[str, Any] = {key: getattr(self, key, getattr(self.ran, key, None)) for key in KEYS}
        values = {k: v.value if isinstance(v, Estimate) else v for k, v in known.items()}
        low, high = (self.sps.low, self.sps.high) if self.sps else (None, None)
        told = [*self.warnings, *self.not_applicable, *self.ran.unknown]
        return values | {"sps_low": low, "sps_high": high, "warnings": told}


def replay_rows(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """The JSON rows of runs, with the speed-ups against the baselines among them."""
    return [row.to_json() for row in with_speedups(rows)]


def row_of_folder(folder: Path) -> RunRow:
    """The row of a run folder, without speed-ups. Raises metrics.store.database.StoreError."""
    with RunStore.open_reader(folder / "run.db") as store:
        return run_row(store)


def run_row(store: Store) -> RunRow:
    """The row of one run, without speed-ups: these need the baselines (`with_speedups`)."""
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
    return _baseline(row, run, store) if row.baseline else _swarm(row, run, store)


def with_speedups(rows: Sequence[RunRow]) -> list[RunRow]:
    """The rows with both speed-ups, each against the baselines of the same GPU and model among `rows`.

    `speedup` is sps / sps_wall (one clock), `speedup_phase_timed` is sps_epoch_mean / sps_phase_timed (the
    study's two clocks). Several baselines of one kind: their mean, and a warning says so.
    """
    baselines: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        if row.baseline and row.gpu and row.model:
            baselines.setdefault((row.gpu, row.model), []).append(row)
    return [row if row.baseline else _sped_up(row, baselines) for row in rows]


def _sped_up(row: RunRow, baselines: Mapping[tuple[str, str], Sequence[RunRow]]) -> RunRow:
    def without(reason: str) -> RunRow:
        sentence = f"speedup and speedup_phase_timed are null: {reason}."
        return replace(row, speedup=None, speedup_phase_timed=None, warnings=(*row.warnings, sentence))

    if len(row.accelerators) > 1:
        return without(
            f"the peers have different GPUs ({', '.join(a or 'unknown' for a in row.accelerators)})"
        )
    if row.gpu is None or row.model is None:
        return without(f"the run's {'GPU' if row.gpu is None else 'model'} is not known")
    same = baselines.get((row.gpu, row.model), ())
    if not same:
        return without(f"no run of one {row.gpu} alone with {row.model} is among those given")
    notes: list[str] = []
    if len(same) > 1:
        notes.append(
            f"The speed-ups are against the mean of {len(same)} baselines: {', '.join(b.run_id for b in same)}."
        )
    wall = mean_interval([b.sps_wall.value for b in same if b.sps_wall])
    timed = mean_interval([b.sps_phase_timed.value for b in same if b.sps_phase_timed])
    speedup = None if row.sps is None or wall is None else row.sps.value / wall.value
    mixed = None if row.sps_epoch_mean is None or timed is None else row.sps_epoch_mean.value / timed.value
    if speedup is None:
        notes.append(
            f"speedup is null: {'sps' if row.sps is None else 'the sps_wall of the baseline'} is not known."
        )
    if mixed is None:
        lacking = "sps_epoch_mean" if row.sps_epoch_mean is None else "the sps_phase_timed of the baseline"
        notes.append(f"speedup_phase_timed is null: {lacking} is not known.")
    return replace(row, speedup=speedup, speedup_phase_timed=mixed, warnings=(*row.warnings, *notes))


def _label(run: RunNumbers) -> str | None:
    """The index's label; of a run of our own, its experiment's name."""
    return run.meta.label if run.meta.imported or run.meta.label else run.meta.document.get("name")


def _baseline(row: RunRow, run: RunNumbers, store: Store) -> RunRow:
    told = [str(text) for text in run.meta.warnings]
    if row.label is None:
        told.append("label is null: no index names the run.")
    wall = timed = None
    lacking: dict[str, str] = {}
    if row.peers > 1:
        told.append(
            f"sps_wall and sps_phase_timed are null: the log is of {row.peers} VMs, not of one alone."
        )
    else:
        rates = single_rates(store.columns("steps", SINGLE_COLUMNS))
        wall, timed = rates.sps_wall, rates.sps_phase_timed
        lacking = _unlogged(run, (*_RULE_TIMERS, "dataload"))
        if lacking:
            timed = None
        if wall is None:
            told.append("sps_wall is null: the log has no wall time after its first tenth of steps.")
        if timed is None:
            reason = next(iter(lacking.values()), "the log has no step with phase timers")
            told.append(f"sps_phase_timed is null: {reason}.")
    read, seconds = _baseline_ingress(run, store)
    per_h = None if read is None or seconds <= 0 else read / seconds * 3600
    if per_h is None:
        told.append("ingress_bytes_per_vm_h is null: the log has no counter of received bytes.")
    return replace(
        row,
        sps_wall=wall,
        sps_phase_timed=timed,
        ingress_bytes_per_vm_h=per_h,
        warnings=tuple(told),
        not_applicable=(f"A single VM has no hivemind epochs: {_SWARM_KEYS} are null.",),
    )


def _baseline_ingress(run: RunNumbers, store: Store) -> tuple[int | None, float]:
    """Bytes read and the seconds from the first step to the log's end."""
    records: list[IngressRecord] = store.records("ingress")
    seconds = sum((vm.ended_s or 0.0) - vm.ready_s for vm in run.vms if vm.ready_s is not None and vm.ended_s)
    return (sum(r.network_bytes for r in records) if records else None), seconds


def _swarm(row: RunRow, run: RunNumbers, store: Store) -> RunRow:
    told = sentences(run, money=False)
    if row.label is None:
        told.append("label is null: no index names the run.")
    watched: list[SwarmEpochRecord] = store.records("swarm_epochs")
    chosen = measured(run.study)
    rates, reasons = _epoch_mean(run, bool(watched))
    told += reasons
    peers = _peers(row.peers, store)
    sps, reasons = _sps(replace(row, peers=peers), run, chosen, bool(watched))
    told += reasons
    timed, reasons = _phase_timed(run, store)
    told += reasons
    calc, comm = granularities.calculation(run.study), granularities.communication(run.study)
    wall = granularities.granularity(run.study)
    if chosen and calc is None:
        told.append("calc_s, comm_s and granularity are null: no VM's log covers a measured epoch.")
    elif chosen and wall is None:
        told.append("granularity is null: no communication was found in the measured epochs.")
    epoch_s = epoch_seconds(run.study)
    egress, reasons = _egress(run, chosen)
    told += reasons
    ingress, reasons = _ingress(run, store, chosen)
    told += reasons
    return replace(
        row,
        peers=peers,
        sps_epoch_mean=rates,
        sps=sps,
        n_epochs=len(chosen) if sps is not None or rates is None else rates.n,
        granularity_phase_timed=timed,
        granularity=wall,
        calc_s=calc,
        comm_s=comm,
        epoch_s=epoch_s,
        egress_bytes_per_vm_epoch=egress,
        ingress_bytes_per_vm_h=ingress,
        warnings=tuple(dict.fromkeys(told)),
        not_applicable=("sps_wall and sps_phase_timed are of a single VM without a swarm: null here.",),
    )


def _epoch_mean(run: RunNumbers, watched: bool) -> tuple[Estimate | None, list[str]]:
    """The authors' throughput: the mean of all logged rates but the first."""
    if not watched:
        if run.meta.imported:
            saw = run.meta.imported.monitor
            why = "no epoch ended while the monitor watched" if saw else "there is no log of a monitor"
            return None, [f"sps_epoch_mean is null: {why}, which alone has the epochs' rates."]
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
        # Only the VMs' own samples are known: without one of the VMs' logs they are not the swarm's.
        reason = ""
        samples = math.fsum(e.samples for e in chosen) / len(chosen)
        if row.peers > len(run.vms):
            reason = f"the VMs say that {row.peers} peers averaged, but there are logs of {len(run.vms)}"
        elif row.tbs and samples < _FULL * row.tbs:
            reason = (
                f"the VMs' logs have {samples:.0f} samples an epoch of {row.tbs}, so some VM's log is missing"
            )
        if reason:
            return None, [f"sps, sps_low and sps_high are null: {reason}."]
    told = ["sps_low and sps_high are null: one epoch has no interval."] if len(chosen) == 1 else []
    return throughput(run.study), told


def _phase_timed(run: RunNumbers, store: Store) -> tuple[float | None, list[str]]:
    """The authors' granularity. Their rule works on raw steps, so a scaled run's is from its epochs instead."""
    if not run.terms.scales.none:
        scaled = granularities.granularity_phase_timed(run.study)
        return None if scaled is None else scaled.value, [
            "granularity_phase_timed is from the epochs, multiplied back: the authors' rule knows no scales."
        ]
    found = study_granularity(store.columns("steps", RULE_COLUMNS))
    lacking = _unlogged(run, _RULE_TIMERS)
    by_vm = {vm: value for vm, value in found.by_vm.items() if vm not in lacking}
    why: dict[str, list[str]] = {}
    for vm, reason in sorted({**found.without, **lacking}.items()):
        why.setdefault(reason, []).append(vm)
    told = [
        f"The authors' rule gives no granularity for {', '.join(vms)}: {reason}."
        for reason, vms in why.items()
    ]
    mean = mean_interval(list(by_vm.values()))
    if mean is None:
        told.append(f"granularity_phase_timed is null: {'no VM has one' if why else 'there are no steps'}.")
    return None if mean is None else mean.value, told


def _unlogged(run: RunNumbers, timers: Sequence[str]) -> dict[str, str]:
    """VMs whose logs lack a column that one of `timers` is in: its zeros are not known to be zero."""
    missing = run.meta.logs.missing_columns or {}
    found = {
        vm: [c for c in columns if any(timer in c for timer in timers)] for vm, columns in missing.items()
    }
    return {vm: f"its log has no {', '.join(columns)}" for vm, columns in found.items() if columns}


def _egress(run: RunNumbers, chosen: Sequence[SwarmEpoch]) -> tuple[float | None, list[str]]:
    """Bytes to other peers per VM and measured epoch; VMs whose bytes nobody counted are left out, and named."""
    epochs = {e.epoch for e in chosen}
    if not epochs:
        return None, []
    peers = {vm.vm for vm in run.vms}
    outside = ("joining", "leaving")
    sent = [f for f in run.flows if f.epoch in epochs and f.dst in peers and f.phase not in outside]
    metered = {f.src for f in sent}
    turns = [p.vm for e in chosen for p in e.peers]
    missing = sorted(set(turns) - metered)
    count = sum(1 for vm in turns if vm in metered)
    if not count:
        why = "there is no log of a VM" if not turns else "no VM's sent bytes were counted"
        return None, [f"egress_bytes_per_vm_epoch is null: {why}."]
    told = (
        [f"The sent bytes of {', '.join(missing)} were not counted: they are not in the mean."]
        if missing
        else []
    )
    matrix = traffic(sent, run.study, run.terms.scales, peers)
    return math.fsum(cell.bytes for cell in matrix) / count, told


def _ingress(run: RunNumbers, store: Store, chosen: Sequence[SwarmEpoch]) -> tuple[float | None, list[str]]:
    """Bytes read from the data's store per VM-hour of the measured epochs."""
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
                    study_ingress_bytes(raw, p.samples, run.terms.bytes_per_sample, run.terms.scales)
                )
                seconds += p.wall_s
    if not amounts or seconds <= 0:
        return None, [
            "ingress_bytes_per_vm_h is null: no VM's received bytes were counted in a measured epoch."
        ]
    known = [n for n in amounts if n is not None]
    if len(known) < len(amounts):
        return None, [
            "ingress_bytes_per_vm_h is null: the size of the modelled dataset's samples is not known."
        ]
    return math.fsum(known) / seconds * 3600, []


def _peers(logged: int, store: Store) -> int:
    """How many peers the swarm had: the VMs we know of, or what the monitor, else the VMs themselves, mostly
    counted when that is more."""
    progress, epochs = store.columns("progress", ("vm", "peers")), store.columns("epochs", ("group_size",))
    seen = [n for vm, n in zip(progress["vm"], progress["peers"], strict=True) if vm == ""]
    counts = Counter(seen or epochs["group_size"])
    return max(logged, max(counts, key=lambda n: (counts[n], n), default=logged))
