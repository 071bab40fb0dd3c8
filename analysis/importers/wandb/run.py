"""Imports one run: reads its logs, checks them and writes `run.db`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from analysis.importers.wandb.account import Account, account
from analysis.importers.wandb.bee import BEE_COLUMNS, Bee, Nic, read_bee
from analysis.importers.wandb.files import Log, RunLogs
from analysis.importers.wandb.findings import findings
from analysis.importers.wandb.monitor import MONITOR_COLUMNS, Monitor, aligned, inferred_target, read_monitor
from analysis.importers.wandb.sync import Sync, by_epochs, find_sync
from analysis.importers.wandb.tables import Table, TableError, read_table
from analysis.importers.wandb.traffic import doubled, egress_columns, halved, ingress_rows
from analysis.importers.wandb.vms import vm_rows
from cloud.prices.book import PriceBook
from cloud.targets import IMPORTED
from experiments.catalog import models, published_runs
from metrics.records import SwarmEpochRecord
from metrics.store.database import RunStore

_STORE = "b2/us-west-1"  # the paper's data store (Backblaze B2)


# RunUnusable   no figure of the run can be computed
class RunUnusable(Exception):
    """A run cannot be imported. The message gives the reason."""


@dataclass(frozen=True)
class _Read:
    """The parsed logs of a run."""

    bees: dict[str, Bee]
    logs: dict[str, Log]
    monitor: Monitor | None
    files: list[dict[str, Any]]
    notes: list[str]


def import_run(run: RunLogs, folder: Path, book: PriceBook) -> None:
    """Write `folder/run.db`. Raises RunUnusable if no log of the run is usable, and StoreError."""
    read = _read(run)
    notes, monitor = read.notes, read.monitor
    if monitor is not None:
        monitor = aligned(monitor, _logged_ends(read.bees))
    watched = [(e.epoch, e.ended_s) for e in monitor.epochs] if monitor else []
    model = models().get(run.model or "")
    ran = f"{run.model or 'an unknown model'}"
    syncs = {
        vm: find_sync(bee.opt, bee.epoch, bee.end_s, bee.sent_around(), watched)
        if not _baseline(read)
        else Sync("epochs", (), None, ())
        for vm, bee in read.bees.items()
    }
    _date(read.bees, syncs, watched)
    samples = {vm: _samples(bee, run, syncs, monitor, read, notes) for vm, bee in read.bees.items()}
    accounts = {vm: account(bee, syncs[vm], samples[vm], ran) for vm, bee in read.bees.items()}
    twice, more = doubled(read.bees, accounts, model.parameters if model else None)
    notes += more
    bees = {
        vm: replace(bee, nic=halved(bee.nic)) if vm in twice and bee.nic is not None else bee
        for vm, bee in read.bees.items()
    }
    rows, more = vm_rows(bees, read.logs, book)
    target = _target(run, monitor, read, notes)
    notes += findings(bees, syncs, accounts, monitor, _baseline(read))
    if run.model is None:
        notes.append("The model is unknown: neither the index nor a file name gives it.")
    elif model is None:
        notes.append(
            f"Model '{run.model}' is not in models.csv: its parameters and bytes per sample are unknown."
        )
    notes += more
    first = _first_epoch(monitor, accounts)
    starts = [bee.first_s for bee in bees.values()] or ([monitor.first_s] if monitor else [])
    ends = [bee.last_s for bee in bees.values()] or ([monitor.last_s] if monitor else [])
    meta: dict[str, Any] = {
        "run_id": run.run_id,
        "label": run.label,
        "experiment": run.label or run.run_id,
        "target": IMPORTED.name,
        "emulated": False,
        "scales": None,
        "status": "done",
        "started_s": min(starts),
        "ended_s": max(ends),
        "model": {
            "name": run.model,
            "parameters": model.parameters if model else None,
            "bytes_per_sample": model.bytes_per_sample if model else None,
            "ran": run.model,
        },
        "target_batch_size": target,
        "raw_target_batch_size": target,
        "warmup_epochs": first,
        "addresses": {vm: vm for vm in bees},
        "locations": {row.vm: row.location for row in rows} | {"store": _STORE},
        "price_book": {"name": book.name, "sha256": book.sha256, "csv": book.text},
        "warnings": [*run.notes, *notes],
        "published": _published(run.label),
        "imported": {
            "kind": "wandb",
            "baseline": _baseline(read),
            "files": read.files,
            "monitor": monitor is not None,
            "monitor_period_s": monitor.period_s if monitor else None,
            "monitor_peers": monitor.peers if monitor else None,
            "sync": {vm: _sync_meta(sync) for vm, sync in syncs.items()} if not _baseline(read) else {},
            "nic": {
                vm: _nic_meta(bee.nic, read.bees[vm].nic, bee.logged_s, vm in twice)
                for vm, bee in bees.items()
                if bee.nic is not None
            },
            "zero_rate_epochs": list(monitor.zero_rate) if monitor else [],
            "epoch_rates": [list(row) for row in monitor.rates] if monitor else [],
            "clock": {
                vm: {
                    "steps": bee.steps,
                    "timed_s": accounts[vm].timed_s,
                    "wall_s": accounts[vm].wall_s,
                    "jumps": bee.jumps,
                }
                for vm, bee in bees.items()
            },
            "missing_columns": {vm: list(bee.missing) for vm, bee in bees.items() if bee.missing},
            "egress_destinations": "split equally: the log counts whole NICs",
        },
    }
    with RunStore.open_writer(folder / "run.db") as store, store.transaction():
        store.append("vms", rows)
        for vm, bee in bees.items():
            steps: dict[str, Sequence[Any]] = {k: v.tolist() for k, v in accounts[vm].steps.items()}
            store.append_columns("steps", steps | {"vm": [vm] * bee.steps})
            store.append("epochs", accounts[vm].epochs)
            store.append_columns("egress", egress_columns(vm, bees, accounts[vm].spans))
            if bee.nic is not None:
                store.append("ingress", ingress_rows(vm, bee.nic, accounts[vm].spans, accounts[vm].loads))
        if monitor:
            store.append("swarm_epochs", _timed(monitor, accounts))
            store.append_columns("progress", _progress(monitor))
        for key, value in meta.items():
            store.set_meta(key, value)


def _baseline(read: _Read) -> bool:
    return bool(read.logs) and all(log.role == "baseline" for log in read.logs.values())


def _read(run: RunLogs) -> _Read:
    """Read all logs of a run, using the longest of each host. Raises RunUnusable if nothing was trained."""
    failed: list[str] = []
    notes: list[str] = []
    tables: dict[tuple[str, str], tuple[Log, Table]] = {}
    for log in run.logs:
        columns = MONITOR_COLUMNS if log.role == "monitor" else BEE_COLUMNS
        try:
            table = read_table(log.path, log.shown, columns)
        except TableError as error:
            failed.append(str(error))
            continue
        key = ("monitor", "") if log.role == "monitor" else ("peer", log.host)
        twin = next((k for k, (_, other) in tables.items() if other.content == table.content), key)
        known = tables.get(twin)
        if known is None:
            tables[key] = (log, table)
            continue
        keep, drop = (known, (log, table)) if known[1].rows >= table.rows else ((log, table), known)
        if known[1].content == table.content:
            notes.append(f"{drop[0].shown}: identical to {keep[0].shown}; counted once.")
        else:
            notes.append(
                f"{drop[0].shown}: a second log of {log.host} of {run.run_id} ({drop[1].rows} rows); "
                f"{keep[0].shown} with {keep[1].rows} rows is used."
            )
        tables[twin] = keep
    bees: dict[str, Bee] = {}
    logs: dict[str, Log] = {}
    monitor: Monitor | None = None
    files: list[dict[str, Any]] = []
    for log, table in tables.values():
        try:
            if log.role == "monitor":
                monitor = read_monitor(table)
                notes += monitor.notes
            else:
                bees[log.host] = read_bee(table, log.host)
                logs[log.host] = log
                notes += bees[log.host].notes
        except TableError as error:
            failed.append(str(error))
            continue
        files.append(
            {
                "file": log.shown,
                "role": log.role,
                "host": log.host,
                "rows": table.rows,
                "sha256": table.sha256,
            }
        )
    trained = any(bee.steps for bee in bees.values())
    if not trained and not (monitor and monitor.epochs):
        reasons = " ".join([*failed, *run.notes] or notes[:1]) or "none of its logs has a step or an epoch."
        raise RunUnusable(f"{run.run_id}: nothing can be computed: {reasons}")
    return _Read(bees, logs, monitor, files, [*failed, *notes])


def _logged_ends(bees: Mapping[str, Bee]) -> list[tuple[int, float]]:
    """(epoch, unix end) of all epochs that dated VM logs number."""
    return [
        (b.epoch, float(bee.end_s[b.step]))
        for bee in bees.values()
        if bee.dated and np.isfinite(bee.epoch).any()
        for b in by_epochs(bee.opt, bee.epoch, bee.sent_around())
    ]


def _date(bees: dict[str, Bee], syncs: Mapping[str, Sync], watched: Sequence[tuple[int, float]]) -> None:
    """Date logs without unix time so that their epochs end with those of the monitor and the other VMs."""
    ends: dict[int, list[float]] = {number: [at] for number, at in watched}
    for vm, bee in bees.items():
        for b in syncs[vm].boundaries if bee.dated else ():
            ends.setdefault(b.epoch, []).append(float(bee.end_s[b.step]))
    for vm, bee in bees.items():
        if not bee.dated:
            apart = [
                float(np.median(ends[b.epoch]) - bee.end_s[b.step])
                for b in syncs[vm].boundaries
                if b.epoch in ends
            ]
            began = [other.first_s for other in bees.values() if other.dated]
            by_s = float(np.median(apart)) if apart else min(began, default=bee.first_s) - bee.first_s
            bees[vm] = bee.shifted(by_s)


def _timed(monitor: Monitor, accounts: Mapping[str, Account]) -> list[SwarmEpochRecord]:
    """The monitor's epochs. Unknown durations are computed from the VMs' epoch ends."""
    ends: dict[int, list[float]] = {}
    for each in accounts.values():
        for e in each.epochs:
            ends.setdefault(e.epoch, []).append(e.ended_s)
    return [
        replace(e, duration_s=fmean(ends[e.epoch]) - fmean(ends[e.epoch - 1]))
        if e.duration_s is None and e.sps != 0 and e.epoch in ends and e.epoch - 1 in ends
        else e
        for e in monitor.epochs
    ]


def _samples(
    bee: Bee, run: RunLogs, syncs: Mapping[str, Sync], monitor: Monitor | None, read: _Read, notes: list[str]
) -> np.ndarray:
    """Samples of each step as logged, otherwise estimated from the rest of the run. Raises RunUnusable."""
    if bee.samples is not None:
        return bee.samples
    known = [float(np.median(b.samples)) for b in read.bees.values() if b.samples is not None and b.steps]
    trained = {vm: sync.steps[-1] + 1 for vm, sync in syncs.items() if sync.steps}
    epochs = max((len(sync.steps) for sync in syncs.values()), default=0)
    if known:
        batch, basis = float(np.median(known)), "as on the other VMs"
    elif monitor and monitor.epochs and trained:
        batch, basis = (
            sum(e.samples for e in monitor.epochs) / sum(trained.values()),
            "from the monitor's epochs",
        )
    elif run.target_batch_size and trained:
        batch, basis = run.target_batch_size * epochs / sum(trained.values()), "from the target batch size"
    else:
        raise RunUnusable(f"{run.run_id}: nothing can be computed: {bee.notes[-1]}")
    notes.append(f"{bee.shown}: {batch:.0f} samples per step are assumed, {basis}.")
    return np.full(bee.steps, round(batch), dtype=np.int64)


def _target(run: RunLogs, monitor: Monitor | None, read: _Read, notes: list[str]) -> int | None:
    if run.target_batch_size or _baseline(read):
        return run.target_batch_size
    batches = [int(np.max(b.samples)) for b in read.bees.values() if b.samples is not None and b.steps]
    peers = max(monitor.peers if monitor else 0, len(read.bees))
    found = inferred_target(monitor.epochs, peers * max(batches, default=32)) if monitor else None
    if found is None:
        notes.append("The target batch size is unknown: neither an index nor a monitor's epochs give it.")
    else:
        notes.append(f"The target batch size {found} is inferred from the samples of the monitor's epochs.")
    return found


def _first_epoch(monitor: Monitor | None, accounts: Mapping[str, Account]) -> int:
    """The first logged epoch, which the paper drops."""
    if monitor and monitor.epochs:
        return monitor.epochs[0].epoch
    return min((e.epoch for a in accounts.values() for e in a.epochs), default=1)


def _published(label: str | None) -> dict[str, Any] | None:
    """The published row of a label like `NLP B-4` (experiment `geo-b4-nlp`)."""
    kind, _, name = (label or "").partition(" ")
    row = next((r for r in published_runs().values() if r.run == f"{name} {kind}"), None)
    return asdict(row) if row else None


def _sync_meta(sync: Sync) -> dict[str, Any]:
    return {"rule": sync.rule, "agree": sync.agree, "found": len(sync.steps), "authors": len(sync.authors)}


def _nic_meta(nic: Nic, raw: Nic | None, seconds: float, twice: bool) -> dict[str, Any]:
    raw = raw or nic
    return {
        "sent_bytes": round(float(nic.sent.sum())),
        "received_bytes": round(float(nic.received.sum())),
        "raw_sent_bytes": round(float(raw.sent.sum())),
        "raw_received_bytes": round(float(raw.received.sum())),
        "seconds": seconds,
        "doubled": twice,
        "samples": len(nic.at_s),
        "gaps": nic.gaps,
    }


def _progress(monitor: Monitor) -> dict[str, Sequence[Any]]:
    p = monitor.progress
    return {
        "at_s": p["at_s"].tolist(),
        "vm": [""] * len(p["at_s"]),
        "epoch": p["epoch"].astype(np.int64).tolist(),
        "samples": p["samples"].astype(np.int64).tolist(),
        "sps": p["sps"].tolist(),
        "peers": p["peers"].astype(np.int64).tolist(),
        "eta_s": [value if value == value else None for value in p["eta_s"].tolist()],
    }
