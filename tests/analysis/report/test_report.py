"""The report is one page without network requests, reproducible from run.db byte for byte."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from made_up_run import write_run
from traced_run import OP_NS, SAMPLES, WAIT_NS, add_up, store_sums, write_traces
from wandb_logs import Swarm, write_swarm

from analysis.report.build import build
from analysis.sources import opened
from metrics.records import SWARM_LOST, CoverageRecord, EventRecord
from metrics.store.database import RunStore, StoreError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a synthetic run of four epochs."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, epochs=4)
    return build(folder)


def test_page_has_every_section_and_its_files(page: Path):
    html = page.read_text()
    for heading in ("Compared with the paper", "Peers over time", "Calculation and communication", "Egress by destination",
                    "Cost", "Learning", "Provenance"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in html
    for name in ("comparison", "timeline", "epochs", "traffic", "cost", "learning"):
        for kind in ("png", "svg", "csv"):
            assert (page.parent / f"{name}.{kind}").stat().st_size > 50
    assert html.index("Emulated:") < html.index("<h1>")
    assert "93.4%" in html


def test_a_traced_run_has_sections_on_its_input(page: Path, tmp_path: Path):
    headings = ("Input: time by operation", "Input: waits, delays and stalls")
    assert not any(heading in page.read_text() for heading in headings)
    assert not list(page.parent.glob("input_*"))
    write_run(tmp_path, peers=2, epochs=3)
    folders = write_traces(tmp_path)
    assert store_sums(tmp_path, folders) == []
    built = build(tmp_path)
    assert all(f"<h2>{heading}</h2>" in built.read_text() for heading in headings)
    for name in ("input_operations", "input_waiting"):
        for kind in ("png", "svg", "csv"):
            assert (built.parent / f"{name}.{kind}").stat().st_size > 50
            assert f'<a href="{name}.{kind}">' in built.read_text()
    with (built.parent / "input_operations.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["op"], row["n"], float(row["wall_s"])) == (
        "decode",
        str(2 * 3 * SAMPLES),
        2 * 3 * SAMPLES * OP_NS / 1e9,
    )
    with (built.parent / "input_waiting.csv").open() as file:
        found = [
            (row["epoch"], row["batches"], float(row["wait_s"]), float(row["stall_s"]))
            for row in csv.DictReader(file)
        ]
    assert found == [(str(epoch), "2", 2 * WAIT_NS / 1e9, 0.02) for epoch in (1, 2, 3)]
    summary = json.loads((built.parent / "summary.json").read_text())
    assert [row["op"] for row in summary["input"]["ops"]] == ["decode"]
    assert json.loads((page.parent / "summary.json").read_text())["input"] is None


def test_a_trace_of_batches_or_a_damaged_one_has_what_is_known(tmp_path: Path):
    write_run(tmp_path, peers=2, epochs=3)
    folders = write_traces(tmp_path, ops=False)
    (min(folders.values()) / "trace" / "7-1-0.trace").write_bytes(b"no trace")
    add_up(tmp_path, folders)
    store_sums(tmp_path, folders)
    html = build(tmp_path).read_text()
    assert "Input: time by operation" not in html
    assert "The trace is incomplete: 0 events were dropped, 1 files are damaged." in html


def test_held_out_figures_have_curves_once_two_epochs_were_evaluated(page: Path, tmp_path: Path):
    assert "<h2>Evaluation on held-out data</h2>" in page.read_text()
    assert "One epoch was evaluated." in page.read_text()
    assert (page.parent / "evaluation.csv").exists()
    assert not (page.parent / "evaluation.svg").exists()
    write_run(tmp_path, peers=2, epochs=4)
    rows = [
        {
            "vm": "a",
            "epoch": e,
            "at_s": 9.0,
            "accuracy": None,
            "loss": 3.0 / e,
            "samples": 90,
            "metrics": {"wer": 1 / e},
        }
        for e in (1, 2, 4)
    ]
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("evaluations", rows)
        metric = {"name": "loss", "at_most": 1.6}
        store.set_meta("experiment", {"name": "mine", "train": {"until": {"metric": metric}}})
    built = build(tmp_path)
    with (built.parent / "evaluation.csv").open() as file:
        found = [
            (row["epoch"], row["raw_trained_samples"], row["figure"], row["value"])
            for row in csv.DictReader(file)
        ]
    assert found[:3] == [
        ("1", "4096.0", "loss", "3.0"),
        ("1", "4096.0", "wer", "1.0"),
        ("2", "8192.0", "loss", "1.5"),
    ]
    assert len(found) == 6
    drawn = (built.parent / "evaluation.svg").read_text()
    assert ">loss</text>" in drawn
    assert ">wer</text>" in drawn
    for axis in ("samples trained on", "training time (min)", "dollars spent", "target"):
        assert f">{axis}</text>" in drawn
    html = built.read_text()
    assert 'aria-label="Evaluation on held-out data"' in html
    assert "One epoch was evaluated." not in html
    assert "The target, loss of at most 1.6, was reached after epoch 2: 65,536 samples, " in html
    assert '<div class="name">Time to reach the target</div>' in html


def test_timeline_begins_at_the_launch_and_marks_the_loss_of_all_peers(tmp_path: Path):
    write_run(tmp_path, epochs=2)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        started_s = store.run_meta().started_s
        assert started_s is not None
        store.set_meta("started_s", started_s - 9.0)  # nine seconds before the first request for a VM
        lost = EventRecord(1, started_s + 70.0, SWARM_LOST, "", -1, "", "", "", "all gone", "{}")
        store.append("events", [lost])
    built = build(tmp_path)
    with (built.parent / "timeline.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["requested_s"] for row in rows if row["requested_s"]} == {"9.0"}
    assert [row["all_peers_lost_s"] for row in rows if row["all_peers_lost_s"]] == ["79.0"]
    assert "all peers lost" in (built.parent / "timeline.svg").read_text()
    assert "All peers were lost at once" in built.read_text()


def test_page_makes_no_network_requests(page: Path):
    html = page.read_text()
    shown = html[: html.index("<h2>Provenance")]
    fetched = re.findall(r'(?:src|href)="(?!#)([^"]*)"|url\((?!#)([^)]*)\)|@import', shown)
    assert all("://" not in a + b for a, b in fetched)
    assert "<script" not in html


def test_building_again_gives_the_same_bytes(page: Path):
    first = {p.name: p.read_bytes() for p in page.parent.iterdir()}
    second = {p.name: p.read_bytes() for p in build(page.parents[1]).parent.iterdir()}
    assert first == second


def test_csv_holds_what_the_figure_shows(page: Path):
    with (page.parent / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["warmup"] for row in rows] == ["True", "False", "False", "False"]


def test_a_run_without_a_finished_epoch_still_has_a_report(tmp_path: Path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("run_id", "x-20231114-aaaa")
        store.set_meta("status", "failed")
        store.set_meta("experiment", {"name": "x"})
    html = build(tmp_path).read_text()
    assert "unknown" in html
    assert "failed" in html


def test_no_such_run(tmp_path: Path):
    with pytest.raises(StoreError, match="no such run"):
        build(tmp_path)


def test_report_of_imported_logs_is_marked(tmp_path: Path):
    write_swarm(tmp_path / "logs", Swarm())
    with opened([tmp_path / "logs"]) as found:
        page = build(found.runs[0].folder).read_text()
    assert "Computed from imported logs, not measured by orch." in page
    assert "Measured on rented VMs" not in page
    assert "socket counters" not in page


def test_coverage_of_the_data_is_told_in_words_and_unknown_without_reports(page: Path, tmp_path: Path):
    assert "<h2>Coverage of the training data</h2>" not in page.read_text()
    assert json.loads((page.parent / "summary.json").read_text())["coverage"] is None
    write_run(tmp_path, peers=2, epochs=2)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("training_shards", 2)
        vm, other = sorted(row.vm for row in store.records("vms"))
        told = [
            ("size", 0, 0, 0, 3000),
            ("size", 0, 1, 0, 1096),
            ("used", 0, 0, 0, 2900),
            ("end", 0, 0, 0, 0),
        ]
        store.append("coverage", [CoverageRecord(vm, number, *row) for number, row in enumerate(told)])
        store.append("coverage", [CoverageRecord(other, 0, "used", 0, 0, 0, 120)])
    built = build(tmp_path)
    html = built.read_text()
    assert "<h2>Coverage of the training data</h2>" in html
    assert f"{other} ended without a last report" in html
    summary = json.loads((built.parent / "summary.json").read_text())["coverage"]
    # the samples of shard 1 that the second VM may have used as well: those from 120 on
    assert summary["passes"] == [
        {"pass": 1, "samples": 4096, "counted": 4096, "once": 0, "more": 120, "never": 1096, "unknown": 2880, "unsized_shards": 0}
    ]  # fmt: skip
    assert summary["open_vms"] == [other]
    assert "Pass 1: 4,096 samples: 0 seen once, 120 twice or more, 1,096 not (yet), 2,880 unknown." in html
    with (built.parent / "coverage.csv").open() as file:
        assert next(csv.DictReader(file))["more"] == "120"
