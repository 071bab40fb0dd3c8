"""The main job on this machine, short: two peers across the Atlantic, from the YAML to the report."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from running import Running, orch

from analysis.pipeline.merge import read_trace
from metrics.records import NO_EPOCH, PHASES
from metrics.store.database import RunStore
from metrics.utilisation import busy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_KEYS = {
    "schema_version", "run_id", "experiment", "target", "status", "emulated", "scales", "host_contended",
    "target_batch_size", "peers", "epochs", "sps", "granularity", "calc_s", "comm_s", "epoch_s", "dropped_rounds",
    "egress", "ingress_bytes", "cost", "usd_per_1m_samples", "loss", "accuracy", "published", "warnings", "raw",
}  # fmt: skip


def test_launch_to_report(clean_home: Path):
    run = Running(clean_home, "local-2", "--set", "measure.epochs=6", "--set", "data.trace=ops")
    try:
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        assert summary.keys() >= _KEYS
        assert summary["status"] == "done"
        assert summary["epochs"]["measured"] >= 5
        assert summary["dropped_rounds"] == 0, summary["warnings"]
        assert summary["loss"]["last"] < summary["loss"]["first"]
        assert summary["accuracy"] > 0.5
        assert summary["cost"]["total_usd"] is not None
        assert summary["usd_per_1m_samples"] > 0
        assert abs(summary["agreement"]["difference"]) < 0.03
        assert {p["slot"]: p["vms"] for p in summary["peers"]} == {"us-0": 1, "eu-0": 1}
        again = orch("report", run.run_id, "-o", "json")
        assert json.loads(again.stdout) == summary
        page = Path(orch("report", "latest").stdout.strip())
        assert page.read_text().count("<svg") >= 5
        _check_step_logs(run.folder)
        _check_utilisation(run.folder)
        _check_input_sums(run.folder)
        _check_export(run.run_id, clean_home.parent)
    finally:
        run.close()


def _check_export(run_id: str, folder: Path) -> None:
    """Exported and read back, every number is the run's own."""
    live = orch("replay", run_id, "-o", "json").stdout
    assert json.loads(live)["runs"][0]["sps"] > 0
    for form in ("parquet", "csv"):
        out = folder / f"export-{form}"
        orch("export", run_id, "--to", form, "--out", str(out))
        assert orch("replay", str(out), "-o", "json").stdout == live
    costs = [json.loads(orch("cost", where, "-o", "json").stdout) for where in (run_id, str(out))]
    assert costs[0] == costs[1]


def _check_step_logs(folder: Path) -> None:
    """The phases of each peer's steps sum to the wall time; what no phase claims is little."""
    logs = sorted(folder.glob("vms/*/steps.csv"))
    assert len(logs) == 2
    for log in logs:
        with log.open() as file:
            steps = [
                {k: float(v) for k, v in row.items() if k.endswith("_s")} for row in csv.DictReader(file)
            ]
        wall = sum(s["wall_s"] for s in steps)
        phases = {p: sum(s[f"{p}_s"] for s in steps) for p in PHASES}
        assert sum(phases.values()) == pytest.approx(wall, rel=0.01)
        assert phases["other"] < 0.02 * wall


def _check_input_sums(folder: Path) -> None:
    """What the peers reported of their traces is what the files of these have, by VM, epoch and operation."""
    with RunStore.open_reader(folder / "run.db") as store:
        ops, batches, epochs = (store.records(table) for table in ("input_ops", "input_batches", "epochs"))
        traces = store.records("input_traces")
    trace = read_trace(folder / "vms")

    def epoch_of(vm: str, at_ns: int) -> int:
        inside = [e.epoch for e in epochs if e.vm == vm if e.began_s <= at_ns / 1e9 < e.ended_s]
        return inside[0] if inside else NO_EPOCH

    n, wall_ns = Counter[tuple[str, int, str]](), Counter[tuple[str, int, str]]()
    for op in trace.ops:
        key = op.vm, epoch_of(op.vm, op.start_ns), op.op
        n[key] += 1
        wall_ns[key] += op.wall_ns
    assert {(row.vm, row.epoch, row.op): row.n for row in ops} == n
    assert {(row.vm, row.epoch, row.op): row.wall_s for row in ops} == {
        k: v / 1e9 for k, v in wall_ns.items()
    }
    used, wait_ns = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for batch in trace.batches:
        if batch.consumed_start_ns is not None and batch.wait_ns is not None:
            key = batch.vm, epoch_of(batch.vm, batch.consumed_start_ns + (batch.consumed_ns or 0) // 2)
            used[key] += 1
            wait_ns[key] += batch.wait_ns
    assert {(row.vm, row.epoch): row.n for row in batches} == used
    assert {(row.vm, row.epoch): row.wait_s for row in batches} == {k: v / 1e9 for k, v in wait_ns.items()}
    assert {row.vm for row in traces} == {row.vm for row in epochs}
    assert {row.dropped for row in traces} == {0}


def _check_utilisation(folder: Path) -> None:
    """Each VM's processes, memory and network were read, at a cost of CPU time that peer.log tells."""
    with RunStore.open_reader(folder / "run.db") as store:
        rows = store.records("utilisation")
    logs = sorted(folder.glob("vms/*/peer.log"))
    assert {row.vm for row in rows} == {log.parent.name for log in logs}
    for log in logs:
        own = [row for row in rows if row.vm == log.parent.name]
        assert {row.scope for row in own} == {"peer"}
        assert own[0].memory_bytes is not None
        used = busy(own)
        assert used is not None
        assert used.cpu_mean is not None
        assert 0 < used.cpu_mean < 1
        assert used.sent_peak_bytes_per_s is not None
        assert used.sent_peak_bytes_per_s > 10_000  # an averaging round
        (cost,) = re.findall(r"utilisation was read \d+ times, at ([\d.]+) % of a core", log.read_text())
        assert 0 < float(cost) < 2  # docs/numbers.md: about 0.1; a busy machine doubles it
