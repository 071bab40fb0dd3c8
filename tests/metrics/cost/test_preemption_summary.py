"""The cost of preemptions on its way to a person: JSON, the command line's lines, the report's section."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.report.build import build
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise
from orch.frames import preemption_rows
from orchestrator.cli.render.summary import summary_lines
from tests.metrics.cost.test_preemptions import JOINS, RECORDS, VMS, run_event


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run that test_preemptions works out by hand, with a pause."""
    with RunStore.open_writer(tmp_path / "run.db") as store:
        meta = {
            "run_id": "r", "experiment": {"name": "x"}, "status": "done", "emulated": False, "target": "sky",
            "started_s": -20.0, "ended_s": 120.0, "warmup_epochs": 1, "warnings": [],
        }  # fmt: skip
        for key, value in meta.items():
            store.set_meta(key, value)
        for row in VMS:
            store.upsert_vm(row)
        store.append("epochs", RECORDS)
        store.append("joins", JOINS)
        store.append(
            "events", [run_event(1, 54.0, "running", "paused"), run_event(2, 90.0, "paused", "running")]
        )
    return tmp_path


def test_the_summary_has_the_rows_and_their_sums(folder: Path) -> None:
    with RunStore.open_reader(folder / "run.db") as store:
        found = summarise(store)
        run = RunNumbers.of(store)
    (row,) = found["preemptions"]["vms"]
    assert found["preemptions"]["count"] == 1
    assert (row["slot"], row["replaced_by"], row["startup_s"], row["state_bytes"]) == (
        "b",
        "b1",
        30.0,
        6_000_000,
    )
    assert found["preemptions"]["usd"] == row["usd"] == pytest.approx((0.18 * 5 + 0.36 * 30) / 3600, abs=1e-6)
    assert found["preemptions"]["lost_samples"] == row["lost_samples"]
    assert found["preemptions"]["epochs_slowed"] == []
    assert found["pauses"] == {"count": 1, "seconds": 36.0, "usd": pytest.approx(0.0048, abs=1e-6)}
    json.dumps(found, allow_nan=False)
    assert preemption_rows(run)[0]["slowed_epochs"] == ""


def test_lines_and_page_show_preemptions(folder: Path) -> None:
    with RunStore.open_reader(folder / "run.db") as store:
        lines = "\n".join(summary_lines(summarise(store), None))
    assert "preemptions     1: < $0.01, " in lines
    assert "0 epochs slowed" in lines
    assert "below min_peers, billed < $0.01" in lines
    html = build(folder).read_text()
    assert "<h2>Cost of preemptions</h2>" in html
    assert "Pauses with fewer peers than min_peers: 1, 36 s" in html
    assert (
        (folder / "report" / "preemptions.csv").read_text().startswith("vm,slot,location,at_s,replaced_by,")
    )


def test_run_without_joins_has_no_lines(folder: Path) -> None:
    with RunStore.open_writer(folder / "run.db") as store:
        for row in VMS:
            if row.vm == "b":
                store.upsert_vm(replace(row, end_cause=""))
    with RunStore.open_reader(folder / "run.db") as store:
        found = summarise(store)
    assert found["preemptions"] == {
        "count": 0,
        "usd": 0.0,
        "lost_samples": 0.0,
        "epochs_slowed": [],
        "vms": [],
    }
    assert "preemptions" not in "\n".join(summary_lines(found, None))
