"""Importing synthetic logs with known epochs: records, meta, and a sentence for each inconsistency."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from wandb_logs import Swarm, Truth, write_baseline, write_index, write_swarm

from analysis.importers.base import ImportFailed
from analysis.importers.wandb import WandbLogs
from analysis.importers.wandb.traffic import averaging_bytes
from cloud.prices.book import load
from metrics.store.database import RunStore

FOUR = ("gc-us-t4-1", "gc-us-t4-2", "gc-eu-t4-1", "gc-eu-t4-2")
MIXED = ("gc-us-t4-1", "gc-us-t4-2", "azure-us-t4-1", "azure-us-t4-2")


class Run:
    """One imported run, read back."""

    def __init__(self, folder: Path) -> None:
        with RunStore.open_reader(folder / "run.db") as store:
            self.meta: dict[str, Any] = store.all_meta()
            self.vms = {row.vm: row for row in store.records("vms")}
            self.epochs = {(row.vm, row.epoch): row for row in store.records("epochs")}
            self.steps = store.columns("steps")
            self.egress = store.records("egress")
            self.ingress = store.records("ingress")
            self.swarm = store.records("swarm_epochs")
            self.progress = store.records("progress")
        self.text = "\n".join(self.meta["warnings"])


def _import(logs: Path, tmp_path: Path, **options: Any) -> tuple[dict[str, Run], tuple[str, ...]]:
    found = WandbLogs().import_runs(logs, tmp_path / "into", **options)
    return {folder.name: Run(folder) for folder in found.folders}, found.problems


def _one(swarm: Swarm, tmp_path: Path, **options: Any) -> tuple[Run, Truth]:
    truth = write_swarm(tmp_path / "logs", swarm)
    runs, problems = _import(tmp_path / "logs", tmp_path, **options)
    assert problems == ()
    return runs[swarm.run_id], truth


def _index_row(swarm: Swarm, host: str, **more: Any) -> dict[str, Any]:
    return {
        "label": "CV A-2", "run_id": swarm.run_id, "file": f"{swarm.run_id}-{host}.csv",
        "role": "monitor" if "monitor" in host else "bee", "location": "GC-US", "host": host,
        "model": "ConvNextLarge", "target_batch_size": 32768, "gpu": "T4", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    "swarm",
    [
        Swarm(hosts=FOUR),
        Swarm(
            hosts=FOUR, gz=True, seed=3, comm_s=60, steps=6, epochs=6, step_s=0.25
        ),  # granularity far below 1
        Swarm(hosts=FOUR[:2], seed=4, step_s=0.05, local_opt_s=0.004, steps=300, comm_s=2.5),
        Swarm(hosts=FOUR, seed=5, first_epoch=7),
        Swarm(hosts=FOUR, epochs=1),
        Swarm(hosts=FOUR, epochs=9, steps=1, comm_s=9),
        Swarm(hosts=FOUR, epochs=9, steps=2, comm_s=9, seed=6),
    ],
    ids=[
        "plain",
        "low granularity",
        "fast steps",
        "joined a running swarm",
        "one epoch",
        "one step",
        "two steps",
    ],
)
def test_epochs_match_the_generated_ones(swarm: Swarm, tmp_path: Path):
    run, truth = _one(swarm, tmp_path)
    assert set(run.epochs) == set(truth.ended_s)
    for key, record in run.epochs.items():
        assert record.ended_s == pytest.approx(truth.ended_s[key], abs=1.0)
        local_s = swarm.local_opt_s if swarm.steps > 1 else 0  # without a local step it is not known
        assert record.comm_s == pytest.approx(truth.comm_s[key] - local_s, abs=0.02)
        assert record.samples == truth.samples[key]
        assert record.steps == swarm.steps
        assert record.calc_s + record.comm_s == pytest.approx(record.ended_s - record.began_s)
        parts = (
            "load_s",
            "move_s",
            "forward_s",
            "backward_s",
            "optimizer_local_s",
            "optimizer_sync_s",
            "other_s",
        )
        assert sum(getattr(record, p) for p in parts) == pytest.approx(record.ended_s - record.began_s)
    assert {k: e.samples for k, e in ((e.epoch, e) for e in run.swarm)} == truth.swarm_samples
    assert run.meta["warmup_epochs"] == swarm.first_epoch + 1
    assert run.meta["target_batch_size"] == swarm.target_batch_size
    assert "is inferred from the samples" in run.text
    assert {s["rule"] for s in run.meta["imported"]["sync"].values()} == {"epochs"}


def test_steps_sum_to_the_wall_time_and_have_their_epoch(tmp_path: Path):
    swarm = Swarm(hosts=FOUR[:2])
    run, _ = _one(swarm, tmp_path)
    for host in swarm.hosts:
        rows = [k for k, vm in enumerate(run.steps["vm"]) if vm == host]
        wall = [run.steps["wall_s"][k] for k in rows]
        began = [run.steps["began_s"][k] for k in rows]
        last = run.epochs[host, swarm.epochs]
        assert began[0] + sum(wall) == pytest.approx(last.ended_s)
        assert [run.steps["epoch"][k] for k in rows] == [e for e in (1, 2, 3) for _ in range(swarm.steps)]
        assert all(run.steps["other_s"][k] >= 0 for k in rows)
        syncs = [k for k in rows if run.steps["optimizer_sync_s"][k] > 0]
        assert [run.steps["step"][k] for k in syncs] == [swarm.steps * e for e in (1, 2, 3)]
        assert began[0] == run.vms[host].ready_s
    assert run.meta["imported"]["clock"][FOUR[0]]["steps"] == swarm.epochs * swarm.steps


def test_bytes_are_split_equally_and_completely(tmp_path: Path):
    swarm = Swarm(hosts=FOUR, epochs=3)
    run, truth = _one(swarm, tmp_path)
    for host in FOUR:
        own = [r for r in run.egress if r.vm == host]
        nic = run.meta["imported"]["nic"][host]
        assert sum(r.bytes for r in own) == pytest.approx(nic["sent_bytes"], abs=5)
        assert {r.dst_address for r in own} == set(FOUR) - {host}
        assert {r.phase for r in own} == {"joining", "calc", "comm", "leaving"}
        for epoch in (1, 2, 3):
            sent = [r.bytes for r in own if r.epoch == epoch and r.phase == "comm"]
            assert max(sent) - min(sent) <= 1
            assert sum(r.bytes for r in own if r.epoch == epoch and r.phase in ("calc", "comm")) == pytest.approx(
                truth.sent_bytes[host], rel=0.15  # the last second may be the next epoch's
            )  # fmt: skip
        read = sum(r.network_bytes for r in run.ingress if r.vm == host)
        assert read == pytest.approx(3 * swarm.steps * swarm.batch * swarm.bytes_per_sample, rel=0.02)
        assert not nic["doubled"]
    assert averaging_bytes(swarm.parameters, 4) == pytest.approx(truth.sent_bytes[FOUR[0]], abs=1)


def test_places_machines_and_prices(tmp_path: Path):
    hosts = ("gc-us-t4-1", "aws-us-t4-1", "lambda-us-a10-1", "rtx8000-1", "gc-t4-9")
    run, _ = _one(Swarm(hosts=hosts), tmp_path)
    rows = [
        (run.vms[h].location, run.vms[h].accelerator, run.vms[h].use_spot, run.vms[h].usd_per_h)
        for h in hosts
    ]
    assert rows == [
        ("gcp/us-central1", "T4:1", True, Decimal("0.180")),
        ("aws/us-west-2", "T4:1", True, Decimal("0.395")),
        ("lambda/us-west-2", "A10:1", False, Decimal("0.60")),
        ("unknown", "RTX8000:1", True, None),
        ("unknown", "T4:1", True, Decimal("0.180")),  # the same in all of the cloud's regions
    ]
    assert run.vms["gc-us-t4-1"].instance == "n1-standard-8"
    assert run.vms["gc-us-t4-1"].price_source == "study-2023-04.csv"
    for sentence in (
        "Spot prices are assumed",
        "lambda-us-a10-1: on-demand price",
        "has no price for RTX8000:1 at onprem (rtx8000-1)",
        "The place of gc-t4-9 is unknown ('gc-t4-9' does not give its region)",
        "'aws-us-t4-1' is assumed to be aws/us-west-2",
    ):
        assert sentence in run.text
    assert run.meta["price_book"]["sha256"] == load("study-2023-04").sha256


def test_an_index_names_label_place_model_gpu_and_target(tmp_path: Path):
    swarm = Swarm()
    write_swarm(tmp_path / "logs" / "wandb", swarm)
    rows = [
        _index_row(swarm, swarm.hosts[0], location="GC-AUS"),
        _index_row(swarm, swarm.hosts[1], location="ONPREM-EU", gpu="RTX 8000"),
        _index_row(swarm, "vm-monitor", location="", gpu=""),
    ]
    for row in rows:
        row["file"] = f"wandb/{row['file']}"
    write_index(tmp_path / "logs", rows)
    runs, problems = _import(tmp_path / "logs", tmp_path)
    run = runs[swarm.run_id]
    assert problems == ()
    assert (run.meta["label"], run.meta["experiment"]) == ("CV A-2", "CV A-2")
    assert run.meta["published"]["experiment"] == "geo-a2"
    assert run.meta["target_batch_size"] == 32768
    assert run.meta["model"] == {
        "name": "ConvNextLarge", "parameters": 197_767_336, "bytes_per_sample": 124_000, "ran": "ConvNextLarge",
    }  # fmt: skip
    assert [vm.location for vm in run.vms.values()] == ["gcp/australia-southeast1", "onprem/eu"]
    assert [vm.accelerator for vm in run.vms.values()] == ["T4:1", "RTX8000:1"]
    assert [f["file"] for f in run.meta["imported"]["files"]] == [row["file"] for row in rows]


def test_a_single_vm_has_steps_and_no_epochs(tmp_path: Path):
    path = write_baseline(tmp_path / "logs", steps=300)
    runs, _ = _import(tmp_path / "logs", tmp_path)
    run = runs["baseline-901"]
    assert (run.epochs, run.egress, run.swarm) == ({}, [], [])
    assert run.meta["imported"]["baseline"] is True
    assert run.meta["model"]["name"] == "ConvNextLarge"
    assert run.meta["imported"]["files"][0]["file"] == path.name
    # The first step's begin is known from its timers only; from then on the rate is the true one.
    rate = sum(run.steps["samples"][1:]) / sum(run.steps["wall_s"][1:])
    assert rate == pytest.approx(32 / 0.9, rel=0.004)
    assert sum(r.network_bytes for r in run.ingress) == pytest.approx(300 * 32 * 124_000, rel=0.01)


def test_missing_monitor_is_reported_and_vm_clocks_are_used(tmp_path: Path):
    run, _ = _one(Swarm(monitor=False), tmp_path)
    assert run.meta["imported"]["monitor"] is False
    assert run.swarm == []
    assert len(run.epochs) == 6
    assert "There is no monitor log" in run.text
    assert "The target batch size is unknown" in run.text
    assert run.meta["target_batch_size"] is None


def test_missing_vm_is_reported_with_the_monitors_count(tmp_path: Path):
    truth = write_swarm(tmp_path / "logs", Swarm(hosts=FOUR))
    truth.files[FOUR[2]].unlink()
    runs, _ = _import(tmp_path / "logs", tmp_path)
    assert "The monitor saw 4 peers, but only 3 have logs" in runs["hivemind-900"].text


def test_monitor_alone_gives_the_swarms_epochs(tmp_path: Path):
    truth = write_swarm(tmp_path / "logs", Swarm(hosts=FOUR))
    for host in FOUR:
        truth.files[host].unlink()
    runs, _ = _import(tmp_path / "logs", tmp_path)
    run = runs["hivemind-900"]
    assert (len(run.swarm), run.vms) == (3, {})
    assert "but only 0 have logs" in run.text


def test_failed_idle_and_late_peers_are_distinguished(tmp_path: Path):
    swarm = Swarm(hosts=FOUR, epochs=5, fails={FOUR[1]: 3}, idle=(FOUR[2],), late={FOUR[3]: 2})
    run, truth = _one(swarm, tmp_path)
    assert set(run.epochs) == set(truth.ended_s)
    assert f"{FOUR[1]} did not average after epoch 2 of 5, and its log ends" in run.text
    assert f"hivemind-900-{FOUR[2]}.csv: the VM logged" in run.text
    assert "but no training step: it failed or idled" in run.text
    assert f"{FOUR[3]} reached epoch 2 without averaging" in run.text
    for key in truth.comm_s:
        assert run.epochs[key].comm_s == pytest.approx(truth.comm_s[key], abs=0.1)
    # The state that it loaded came from its peers: it is no data of the store's.
    read = sum(r.network_bytes for r in run.ingress if r.vm == FOUR[3])
    assert read == pytest.approx(3 * swarm.steps * swarm.batch * swarm.bytes_per_sample, rel=0.1)
    after = {r.dst_address for r in run.egress if r.vm == FOUR[0] and r.epoch == 5}
    assert after == {FOUR[3]}  # the others were gone, or never trained


@pytest.mark.parametrize("model", ["ConvNextLarge", "mystery"])
def test_doubled_counters_are_halved_and_reported(tmp_path: Path, model: str):
    swarm = Swarm(hosts=MIXED, doubled=MIXED[2:])
    truth = write_swarm(tmp_path / "logs", swarm)
    write_index(tmp_path / "logs", [_index_row(swarm, h, model=model) for h in (*MIXED, "vm-monitor")])
    runs, _ = _import(tmp_path / "logs", tmp_path)
    run = runs[swarm.run_id]
    for host in MIXED:
        nic = run.meta["imported"]["nic"][host]
        assert nic["doubled"] == (host in swarm.doubled)
        times = 2 if nic["doubled"] else 1
        assert nic["raw_sent_bytes"] == pytest.approx(times * nic["sent_bytes"], abs=2)
        assert nic["raw_received_bytes"] == pytest.approx(times * nic["received_bytes"], abs=2)
        assert nic["sent_bytes"] == pytest.approx(3 * truth.sent_bytes[host], rel=0.01)
        assert (f"{host} sent" in run.text) == nic["doubled"]
    assert "its counters count each byte twice" in run.text
    if model == "mystery":
        assert "Model 'mystery' is not in models.csv" in run.text


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_other_compression_is_reported_and_nothing_is_halved(tmp_path: Path, times: float):
    swarm = Swarm(hosts=FOUR, overhead=1.02 * times)
    write_swarm(tmp_path / "logs", swarm)
    write_index(tmp_path / "logs", [_index_row(swarm, h) for h in (*FOUR, "vm-monitor")])
    runs, _ = _import(tmp_path / "logs", tmp_path)
    run = runs[swarm.run_id]
    assert not any(nic["doubled"] for nic in run.meta["imported"]["nic"].values())
    assert "times the bytes of averaging 197767336 parameters in FP16" in run.text


def test_unknown_run_error_suggests_the_nearest(tmp_path: Path):
    write_swarm(tmp_path / "logs", Swarm())
    write_swarm(tmp_path / "logs", Swarm(run_id="hivemind-901"))
    runs, problems = _import(tmp_path / "logs", tmp_path, only=["hivemind-901", "hivemind-90"])
    assert list(runs) == ["hivemind-901"]
    assert "no run 'hivemind-90'; did you mean 'hivemind-90" in problems[0]


def test_imported_run_is_not_overwritten(tmp_path: Path):
    write_swarm(tmp_path / "logs", Swarm())
    _import(tmp_path / "logs", tmp_path)
    before = (tmp_path / "into" / "hivemind-900" / "run.db").stat().st_mtime_ns
    with pytest.raises(ImportFailed, match="already contains a run"):
        _import(tmp_path / "logs", tmp_path)
    assert (tmp_path / "into" / "hivemind-900" / "run.db").stat().st_mtime_ns == before
