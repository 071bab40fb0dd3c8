"""Synthetic imported runs for the audit's tests: clean unless a test changes a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from metrics.records import (
    TABLES,
    EgressRecord,
    EpochRecord,
    IngressRecord,
    ProgressRecord,
    StepRecord,
    SwarmEpochRecord,
    VmRecord,
)
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta

START_S = 1_700_000_000.0
PARAMETERS = 100_000_000
_STEPS = 8  # in an epoch


@dataclass
class MadeRun:
    """A run's tables and meta, which tests change and read like a store."""

    values: dict[str, Any]
    tables: dict[str, list[Any]]

    def records(self, table: str) -> list[Any]:
        return list(self.tables[table])

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]:
        names = only or [f.name for f in fields(TABLES[table])]
        return {name: [getattr(row, name) for row in self.tables[table]] for name in names}

    def run_meta(self) -> RunMeta:
        return RunMeta.from_json(self.values)

    def write(self, folder: Path) -> Path:
        """As `run.db` in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with RunStore.open_writer(folder / "run.db") as store:
            for key, value in self.values.items():
                store.set_meta(key, value)
            for table, rows in self.tables.items():
                store.append(table, rows)
        return folder


def _vm(name: str, ended_s: float) -> VmRecord:
    return VmRecord(
        vm=name,
        slot=name,
        generation=0,
        location="gcp/us-central1",
        instance="n1-standard-8",
        accelerator="T4:1",
        use_spot=True,
        usd_per_h=None,
        price_source="",
        address=name,
        requested_s=START_S - 30,
        ready_s=START_S,
        ended_s=ended_s,
        end_cause="",
    )


def _meta(run_id: str, label: str, names: list[str], baseline: bool, ended_s: float) -> dict[str, Any]:
    files = [
        {"file": f"wandb/{run_id}-{n}.csv.gz", "role": "bee", "host": n, "rows": 9, "sha256": ""}
        for n in names
    ]
    if not baseline:
        files.append(
            {
                "file": f"wandb/{run_id}-vm-monitor.csv.gz",
                "role": "monitor",
                "host": "vm-monitor",
                "rows": 9,
                "sha256": "",
            }
        )
    nic = {
        "sent_bytes": 10**9,
        "received_bytes": 11 * 10**8,
        "seconds": 600,
        "doubled": False,
        "samples": 600,
        "gaps": 0,
    }
    return {
        "run_id": run_id,
        "label": label,
        "experiment": label,
        "target": "imported",
        "emulated": False,
        "scales": None,
        "status": "done",
        "started_s": START_S,
        "ended_s": ended_s,
        "target_batch_size": 32768,
        "raw_target_batch_size": 32768,
        "warmup_epochs": 0 if baseline else 1,
        "model": {
            "name": "ConvNextLarge",
            "parameters": PARAMETERS,
            "bytes_per_sample": 1e5,
            "ran": "ConvNextLarge",
        },
        "addresses": {n: n for n in names},
        "locations": dict.fromkeys(names, "gcp/us-central1"),
        "warnings": [],
        "imported": {
            "kind": "wandb",
            "baseline": baseline,
            "files": files,
            "monitor": not baseline,
            "monitor_period_s": 1.0,
            "sync": {}
            if baseline
            else {n: {"rule": "opt_step", "agree": True, "found": 6, "authors": 6} for n in names},
            "nic": {n: dict(nic) for n in names},
            "zero_rate_epochs": [],
            "clock": {n: {"steps": 48, "timed_s": 590.0, "wall_s": 600.0, "jumps": 0} for n in names},
        },
    }


def made_run(
    peers: int = 4, epochs: int = 6, untimed: float = 0.0, run_id: str = "hivemind-1", label: str = "CV A-4"
) -> MadeRun:
    """A swarm of T4s: epochs of 90 s calculation, of which timers miss the fraction `untimed`, and 10 s averaging."""
    names = [f"gc-t4-{k + 1}" for k in range(peers)]
    end_s = START_S + 100.0 * epochs
    tables: dict[str, list[Any]] = {table: [] for table in TABLES}
    egress = round(2 * (peers - 1) / peers * PARAMETERS * 2 * 1.02 / (peers - 1)) if peers > 1 else 0
    for name in names:
        tables["vms"].append(_vm(name, end_s + 5))
        for epoch in range(1, epochs + 1):
            began_s = START_S + 100.0 * (epoch - 1)
            # The rates of epochs differ a little, so that there is an interval.
            samples = 32768 // peers + (epoch % 2)
            timed_s = 90.0 * (1 - untimed)
            common = {
                "load_s": 0.0,
                "move_s": 0.0,
                "forward_s": timed_s / 3,
                "backward_s": timed_s * 2 / 3,
                "optimizer_local_s": 0.0,
            }
            tables["epochs"].append(
                EpochRecord(
                    vm=name,
                    epoch=epoch,
                    began_s=began_s,
                    ended_s=began_s + 100.0,
                    steps=_STEPS,
                    samples=samples,
                    **common,
                    optimizer_sync_s=10.0,
                    other_s=90.0 * untimed,
                    calc_s=90.0,
                    comm_s=10.0,
                    loss=None,
                    group_size=peers,
                    dropped="",
                    ran="ConvNextLarge",
                )
            )
            for step in range(_STEPS):
                sync_s = 10.0 if step == _STEPS - 1 else 0.0
                parts = {key: value / _STEPS for key, value in common.items()}
                tables["steps"].append(
                    StepRecord(
                        vm=name,
                        step=(epoch - 1) * _STEPS + step,
                        epoch=epoch,
                        began_s=began_s + 11.25 * step,
                        wall_s=11.25 + sync_s,
                        **parts,
                        optimizer_sync_s=sync_s,
                        other_s=90.0 * untimed / _STEPS,
                        samples=samples // _STEPS,
                    )
                )
            for other in names:
                if other != name:
                    tables["egress"].append(EgressRecord(name, epoch, other, "calc", 90.0, 0))
                    tables["egress"].append(EgressRecord(name, epoch, other, "comm", 10.0, egress))
            tables["ingress"].append(IngressRecord(name, epoch, 10**8, 0))
    for epoch in range(1, epochs + 1):
        done = (32768 // peers + (epoch % 2)) * peers
        tables["swarm_epochs"].append(
            SwarmEpochRecord(epoch, START_S + 100.0 * epoch, 100.0, done, done / 100.0)
        )
    for second in range(100 * epochs + 5):
        tables["progress"].append(
            ProgressRecord(START_S + second, "", second // 100, 300 * (second % 100), 327.7, peers, None)
        )
    return MadeRun(_meta(run_id, label, names, False, end_s), tables)


def made_baseline(run_id: str = "baseline-1", label: str = "CV A-1", untimed: float = 0.5) -> MadeRun:
    """A single T4 at 40 sps by wall clock, with the fraction `untimed` of each step covered by no timer."""
    tables: dict[str, list[Any]] = {table: [] for table in TABLES}
    tables["vms"].append(_vm("gc-t4-1", START_S + 85))
    for step in range(100):
        timed_s = 0.8 * (1 - untimed)
        tables["steps"].append(
            StepRecord(
                vm="gc-t4-1",
                step=step,
                epoch=1,
                began_s=START_S + 0.8 * step,
                wall_s=0.8,
                load_s=0.0,
                move_s=0.0,
                forward_s=timed_s / 2,
                backward_s=timed_s / 2,
                optimizer_local_s=0.0,
                optimizer_sync_s=0.0,
                other_s=0.8 * untimed,
                samples=32,
            )
        )
    return MadeRun(_meta(run_id, label, ["gc-t4-1"], True, START_S + 80), tables)
