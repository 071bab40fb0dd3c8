"""A run, ours or somebody's imported logs, read once: its records' numbers, and its row of figures.

Everything that is null in a row is explained. Figures are those of `metrics.figures` at the study's scale (imported
runs: the logs' own); docs/replay.md has the keys.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from metrics.epochs.granularity import granularity_phase_timed
from metrics.epochs.scaling import study_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, measured, throughput
from metrics.figures import FIGURES, REPLAY
from metrics.paper.rules import RULE_COLUMNS, SINGLE_COLUMNS, single_rates, study_granularity
from metrics.provenance import NOBODY_KNOWS, RanOn
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
"""A speed-up, the rate of the swarm and that of one GPU alone, on the clocks that it is defined on."""
_FULL = 0.98  # peers whose samples reach less than this share of the target are not all of the swarm


class Store(Protocol):
    """What of `metrics.store.database.RunStore` is read here."""

    def records(self, table: str) -> list[Any]: ...

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]: ...

    def run_meta(self) -> RunMeta: ...


@dataclass(frozen=True)
class RunRow:
    """The figures of one run. None: unknown or not applicable; `warnings` and `not_applicable` say why."""

    label: str | None
    run_id: str
    model: str | None
    peers: int
    tbs: int | None
    baseline: bool  # one VM alone, without a swarm
    accelerators: tuple[str, ...]  # each kind once, sorted: ("T4:1",)
    locations: Mapping[str, str]  # by VM
    figures: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])  # by `FIGURES`; absent: None
    n_epochs: int | None = None
    ran: RanOn = NOBODY_KNOWS
    warnings: tuple[str, ...] = ()
    not_applicable: tuple[str, ...] = field(default=())  # why numbers are null that such a run never has

    @property
    def gpu(self) -> str | None:
        """The one kind of accelerator of all VMs; None when they differ or it is not known."""
        return self.accelerators[0] if len(self.accelerators) == 1 and self.accelerators[0] else None

    def value(self, key: str) -> float | None:
        """A figure without its interval."""
        found = self.figures.get(key)
        return found.value if found else None

    def to_json(self) -> dict[str, Any]:
        """The row with exactly `KEYS`, in their order."""
        values: dict[str, Any] = {
            key: self.value(key) if key in FIGURES else getattr(self, key, getattr(self.ran, key, None))
            for key in KEYS
        }
        sps = self.figures.get("sps")
        low, high = (sps.low, sps.high) if sps else (None, None)
        told = [*self.warnings, *self.not_applicable, *self.ran.unknown]
        return values | {"sps_low": low, "sps_high": high, "warnings": told}


@dataclass(frozen=True)
class ReadRun:
    """A run's numbers and the row that they give: all that reports and comparisons start from."""

    run: RunNumbers
    row: RunRow  # without speed-ups: these need the baselines (`with_speedups`)


def replay_rows(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """The JSON rows of runs, with the speed-ups against the baselines among them."""
    return [row.to_json() for row in with_speedups(rows)]


def read_folder(folder: Path) -> ReadRun:
    """The run of a folder with `run.db`. Raises metrics.store.database.StoreError."""
    with RunStore.open_reader(folder / "run.db") as store:
        return read_run(store)


def read_run(store: Store) -> ReadRun:
    """One run's numbers and row. Raises metrics.store.database.StoreError."""
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
        return replace(row, warnings=(*row.warnings, sentence))

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
    figures = dict(row.figures)
    for key, rate, alone in _SPEEDUPS:
        base = mean_interval([b.figures[alone].value for b in same if alone in b.figures])
        if rate not in figures or base is None:
            lacking = f"the {alone} of the baseline" if rate in figures else rate
            notes.append(f"{key} is null: {lacking} is not known.")
        else:
            figures[key] = _speedup(figures[rate], base.value)
    return replace(row, figures=figures, warnings=(*row.warnings, *notes))


def _speedup(rate: Estimate, alone: float) -> Estimate:
    """With the rate's interval; the baseline's own spread is not in it."""
    ratio = rate.value / alone
    factor = ratio / rate.value if rate.value else 0.0
    low, high = (None if end is None else end * factor for end in (rate.low, rate.high))
    return Estimate(ratio, low, high, rate.n)


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
    found = {"sps_wall": wall, "sps_phase_timed": timed, "ingress_bytes_per_vm_h": _plain(per_h, None)}
    return replace(
        row,
        figures=_known(found),
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
    figures = {figure.key: figure.of_epochs(run.study) for figure in _OF_EPOCHS if figure.of_epochs}
    if chosen and figures["calc_s"] is None:
        told.append("calc_s, comm_s and granularity are null: no VM's log covers a measured epoch.")
    elif chosen and figures["granularity"] is None:
        told.append("granularity is null: no communication was found in the measured epochs.")
    egress, reasons = _egress(run, chosen)
    told += reasons
    ingress, reasons = _ingress(run, store, chosen)
    told += reasons
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
        warnings=tuple(dict.fromkeys(told)),
        not_applicable=("sps_wall and sps_phase_timed are of a single VM without a swarm: null here.",),
    )


def _known(figures: Mapping[str, Estimate | None]) -> dict[str, Estimate]:
    return {key: value for key, value in figures.items() if value is not None}


def _plain(value: float | None, n: int | None) -> Estimate | None:
    return None if value is None else Estimate(value, None, None, n or 0)


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
        scaled = granularity_phase_timed(run.study)
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
    if not chosen:
        return None, []
    found = egress_bytes_per_vm_epoch(run)
    turns = {p.vm for e in chosen for p in e.peers}
    if found is None:
        why = "there is no log of a VM" if not turns else "no VM's sent bytes were counted"
        return None, [f"egress_bytes_per_vm_epoch is null: {why}."]
    missing = sorted(turns - {f.src for f in peer_flows(run, chosen)})
    left_out = f"The sent bytes of {', '.join(missing)} were not counted: they are not in the mean."
    return found, [left_out] if missing else []


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
