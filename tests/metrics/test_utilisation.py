"""Utilisation over any time, and as the report shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.report import content
from analysis.report.build import build
from metrics.records import UtilisationRecord, VmRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.utilisation import busy, last_minute

ROW = UtilisationRecord("r-us-0-0", 100.0, 10.0, 10, "peer", 2, 0.5, 0.9, 500, 1000, 70, 20.0, None, None)

VM = VmRecord(
    "r-us-0-0", "us-0", 0, "gcp/us-central1/us-central1-a", "n1", "T4:1", True, None, "", "", 60.0, 70.0, 6200.0, ""
)  # fmt: skip


def test_means_are_weighted_by_time_and_peaks_are_of_any_row():
    longer = replace(ROW, wall_s=30.0, cpu_mean=0.1, cpu_peak=0.2, memory_bytes=700, sent_bytes=90)
    silent = replace(ROW, cpu_mean=None, cpu_peak=None, sent_bytes=None)
    found = busy([ROW, longer, silent])
    assert found is not None
    assert (found.seconds, found.scopes) == (50.0, ("peer",))
    assert (found.cpu_mean, found.cpu_peak, found.memory_peak_bytes) == (0.2, 0.9, 700)
    assert found.sent_mean_bytes_per_s == 160 / 40
    assert (found.received_mean_bytes_per_s, found.gpu_mean, found.gpu_memory_peak_bytes) == (None,) * 3
    assert busy([]) is None


def test_the_last_minute_is_that_of_the_vm():
    rows = [replace(ROW, began_s=100.0 + 10 * n) for n in range(20)]
    assert [row.began_s for row in last_minute(rows)] == [240.0, 250.0, 260.0, 270.0, 280.0, 290.0]
    assert last_minute([]) == []


def test_the_report_shows_each_group(tmp_path: Path):
    rows = [
        replace(ROW, vm=f"r-{slot}-0", began_s=100.0 + 10 * n, cpu_mean=cpu)
        for slot, cpu in (("us-0", 0.5), ("us-1", 0.3), ("eu-0", 0.25))
        for n in range(600)
    ]
    with RunStore.open_writer(tmp_path / "run.db") as store:
        meta = {
            "run_id": "r", "experiment": {"name": "x"}, "status": "done", "emulated": True, "target": "local",
            "scales": {"bytes": 100, "time": 1, "samples": 1}, "started_s": 60.0, "ended_s": 6200.0, "warmup_epochs": 1,
            "warnings": [],
        }  # fmt: skip
        for key, value in meta.items():
            store.set_meta(key, value)
        for slot in ("us-0", "us-1", "eu-0"):
            store.upsert_vm(replace(VM, vm=f"r-{slot}-0", slot=slot))
        store.append("utilisation", rows)
    with RunStore.open_reader(tmp_path / "run.db") as store:
        run = RunNumbers.of(store)
    drawn = content.utilisation_rows(run)
    assert [row["group"] for row in drawn] == ["eu"] * 240 + ["us"] * 240  # 25 s each
    assert {row["vms"] for row in drawn if row["group"] == "us"} == {2}
    assert drawn[0]["at_s"] == 40 + 12.5
    assert drawn[0]["cpu_mean"] == 0.25
    assert drawn[-1]["cpu_mean"] == 0.4
    assert content.utilisation_table(run)[0] == {
        "VM": "r-eu-0-0", "CPU": "25%", "CPU peak": "90%", "memory peak": "0.5 kB", "sent": "7 B/s", "sent peak": "20 B/s",
    }  # fmt: skip
    assert "as a share of all cores of the machine" in content.utilisation_lead(run)
    assert "Bytes and seconds are raw" in content.utilisation_lead(run)
    page = build(tmp_path).read_text()
    assert "Utilisation of the VMs" in page
    lines = (tmp_path / "report" / "utilisation.csv").read_text().splitlines()
    assert len(lines) == 1 + 480
    assert lines[0].startswith("group,at_s,vms,seconds,cpu_mean,cpu_peak,memory_peak_bytes,")
