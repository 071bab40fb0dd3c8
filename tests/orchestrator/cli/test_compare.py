"""`orch compare` from the command line, on generated studies and runs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from study_runs import MadeRuns

from experiments.study_file.load import STUDIES
from metrics.store.database import RunStore
from orchestrator.cli.app import run

pytestmark = pytest.mark.slow


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_run_counts_once_and_runs_of_one_experiment_are_distinguished(
    study: str, capsys: pytest.CaptureFixture[str]
):
    again = ["--set", "measure.epochs=5"]
    for arguments in ([], again):
        assert run(["study", "run", study, "--yes", "--only", "geo-a2", "--only", "geo-b2", *arguments]) == 0
    a2, b2, second, _ = MadeRuns.made
    capsys.readouterr()
    assert run(["compare", a2, b2, a2, "latest", "s", "-o", "json"]) == 0
    named = [row["run_id"] for row in _json(capsys)["rows"]]
    assert len(named) == len(set(named)) == 4
    assert named[:2] == [a2, b2]
    assert run(["compare", a2, second]) == 0
    table = capsys.readouterr().out.splitlines()
    table = table[table.index("Beside the paper:") + 1 :]
    assert table[0].split()[:2] == ["EXPERIMENT", "RUN"]
    assert [line.split()[:3] for line in table[1:3]] == [["CV", "A-2", a2], ["CV", "A-2", second]]
    assert run(["compare", a2, b2, a2]) == 0
    table = capsys.readouterr().out.splitlines()
    assert "RUN" not in table[table.index("Beside the paper:") + 1].split()


def _own(study: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Two runs of an experiment with another target batch size than the paper's, the second one changed."""
    entries = ("{experiment: geo-c8, label: a, set: {swarm.target_batch_size: 16384}}",
               "{experiment: geo-c8, label: b, set: {swarm.target_batch_size: 16384, swarm.optimizer.lr: 0.5}}")  # fmt: skip
    Path(study).write_text(f"name: s\nexperiments: [{', '.join(entries)}]\ncompare: {{replay: never}}\n")
    assert run(["study", "run", study, "--yes"]) == 0
    capsys.readouterr()
    return MadeRuns.made


def test_one_s_own_runs_are_compared_with_each_other_and_on_a_page(
    study: str, own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    first, second = _own(study, capsys)
    assert run(["compare", first, second]) == 0
    shown = capsys.readouterr().out
    assert "Configuration: 1 key differs" in shown
    assert ["swarm.optimizer.lr", "0.01", "0.5"] in [line.split() for line in shown.splitlines()]
    assert "Beside the paper" not in shown
    assert "Kendall" not in shown
    assert "published /" not in shown
    assert "has no published figures: not the paper's experiment" in shown
    assert run(["compare", first, second, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["run_id"] for row in rows if not row["against"]} == {first, second}  # beside the paper
    against = {row["figure"]: row for row in rows if row["of"] == "figure"}
    assert {(row["run_id"], row["against"]) for row in against.values()} == {(second, first)}
    assert float(against["sps"]["ratio"]) == 1.0
    assert [row["figure"] for row in rows if row["of"] == "evaluation"] == ["loss", "accuracy"]
    page = tmp_path / "own.html"
    assert run(["compare", first, second, "-o", "json", "--report", str(page)]) == 0
    found = _json(capsys)
    assert found["differences"]["against"] == first
    assert [row["key"] for row in found["differences"]["configuration"]] == ["swarm.optimizer.lr"]
    figures = {row["figure"]: row["values"] for row in found["differences"]["figures"]}
    assert run(["report", first, "-o", "json"]) == 0
    summary = _json(capsys)
    for key in ("sps", "sps_epoch_mean", "granularity", "comm_s"):  # one definition everywhere
        assert {k: figures[key][0][k] for k in ("value", "low", "high", "n")} == summary[key]
    assert figures["usd_per_1m_samples"][0]["value"] == pytest.approx(summary["usd_per_1m_samples"], abs=1e-6)
    assert figures["sps"][1]["ratio"] == 1.0
    text = page.read_text()
    assert all(f"<h2>{heading}" in text for heading in ("Configuration", "Figures", "Curves"))
    assert "Published, replayed" not in text
    assert "Centralised baselines" not in text
    assert "Throughput against peers" not in text  # of one number of peers
    files = {path.name for path in (tmp_path / "own_files").iterdir()}
    assert files >= {"curves.csv", "differences.csv", "configuration.csv"}


def test_a_study_of_one_s_own_is_compared_with_its_first_run(study: str, capsys: pytest.CaptureFixture[str]):
    first, _ = _own(study, capsys)
    assert run(["compare", "s"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(first)


def test_limits_of_a_whole_study_do_not_judge_some_of_its_runs(
    study: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["study", "run", study, "--yes", "--only", "geo-a2", "--only", "geo-b2"]) == 0
    capsys.readouterr()
    for named in (MadeRuns.made, ["s"]):
        assert run(["compare", *named, "-o", "json"]) == 0
        found = _json(capsys)
        assert found["whole"] is False
        assert {c["inside"] for c in found["checks"] if c["scope"] != "each"} <= {None}
        assert (found["differences"] is None) is (named == ["s"])
    limits = str(STUDIES / "paper-abc-limits.csv")
    assert run(["compare", *MadeRuns.made, "--limits", limits, "-o", "json"]) == 0
    found = _json(capsys)
    assert found["whole"] is True  # limits given for these runs are for them all
    assert {c["figure"]: c["inside"] for c in found["checks"]}["host_contended"] is True


def test_labelled_entry_is_judged_only_if_requested(study: str, capsys: pytest.CaptureFixture[str]):
    assert run(["study", "run", study, "--yes", "--only", "x", "-o", "json"]) == 0
    reported = _json(capsys)["comparison"]
    assert [left["experiment"] for left in reported["left_out"]] == ["CV C-8 x"]
    assert (reported["compared"], reported["checks"]) == (0, [])
    (run_id,) = MadeRuns.made
    assert run(["compare", run_id, "s"]) == 0  # the study knows the label, wherever the run is named
    assert "CV C-8 x (" in (shown := capsys.readouterr().out)
    assert "not judged: the label 'x' marks an option" in shown
    Path(study).write_text(Path(study).read_text().replace("label: x,", "label: x, judged: true,"))
    assert run(["study", "run", study, "--yes", "--only", "x", "-o", "json"]) == 0
    reported = _json(capsys)["comparison"]
    assert (reported["compared"], reported["left_out"]) == (1, [])


def test_a_run_without_a_measured_epoch_is_missing(
    study: str, own_home: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["study", "run", study, "--yes", "--only", "geo-[ab]2"]) == 0
    a2, b2 = MadeRuns.made
    with RunStore.open_writer(own_home / "runs" / a2 / "run.db") as store:
        store.set_meta("warmup_epochs", 3)
    capsys.readouterr()
    assert run(["compare", a2, b2, "-o", "json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert [row["run_id"] for row in document["rows"]] == [b2]
    assert document["missing"] == [{"experiment": a2, "why": "no measured epoch"}]
    assert shown.err == f"left out: {a2}: no measured epoch\n"
    assert run(["compare", a2]) == 2
    assert f"nothing to compare yet ({a2}: no measured epoch)" in capsys.readouterr().err


def test_gains_of_options_are_a_table_and_a_section_of_the_page(
    study: str, own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    entries = [
        "geo-a8, set: {seed: 3}",
        "geo-c8, label: base, repeats: 2",
        "geo-c8, label: x, set: {seed: 1}",
    ]
    listed = ", ".join(f"{{experiment: {entry}}}" for entry in entries)
    expect = (
        "[{row: geo-a8, figure: sps, within: 0.1}, {row: geo-a8, figure: sps, at_least: 2}, {row: x, figure: sps, at_least: 1}, "
        "{row: geo-a8, figure: usd_per_1m}, {row: geo-a8, figure: loss, within_noise: true}]"
    )
    compare = f"{{replay: never, baseline: base, columns: [sps, usd_per_1m, loss], expect: {expect}}}"
    Path(study).write_text(f"name: s\nexperiments: [{listed}]\ncompare: {compare}\n")
    MadeRuns.busy = {"geo-c8-x": 9}
    assert run(["study", "run", study, "--yes", "-o", "json"]) == 0
    reported = _json(capsys)["comparison"]
    assert reported["baseline"] == "base"
    assert [(row["experiment"], row["label"], len(row["run_ids"])) for row in reported["gains"]] == [
        ("CV A-8", "", 1), ("CV C-8", "base", 2), ("CV C-8", "x", 0),
    ]  # fmt: skip
    assert [row["against"] for row in reported["gains"]] == ["CV C-8 base"] * 3
    assert reported["gains"][0]["figures"]["sps"]["ratio"] == pytest.approx(1.0)
    assert reported["gains"][0]["figures"]["loss"]["samples_least"] == 3 * 4096
    assert reported["gains"][2]["left_out"][0]["why"] == "the host was too busy"
    assert len(reported["rows"]) == 4  # as without a baseline
    verdicts = [(one["row"], one["verdict"], one["why"]) for one in reported["expected"]]
    assert verdicts == [
        ("CV A-8", "met", ""),
        ("CV A-8", "missed", ""),
        ("CV C-8 x", "unknown", "the host was too busy"),
        ("CV A-8", "told", ""),
        ("CV A-8", "unknown", "noise unknown: CV C-8 base has runs whose losses do not vary"),
    ]
    page = tmp_path / "c.html"
    assert run(["compare", "s", "--report", str(page)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split("  ")[0] == "EXPERIMENT"
    assert "$/1M SAMPLES" in table[0]
    assert "GRANULARITY" not in table[0]
    assert table[0].split()[:3] == ["EXPERIMENT", "RUNS", "ON"]
    assert table[1].split()[:4] == ["CV", "A-8", "1", "emulated"]
    assert table[2].endswith("baseline")
    assert "Expected: 1 of 4 met, 1 MISSED, 2 unknown; 1 without a limit" in table
    assert "What each option gains" in (text := page.read_text())
    assert "What was expected" in text
    assert "1 of 4" in text
    other = tmp_path / "other.yaml"
    other.write_text(
        Path(study).read_text().replace(f", expect: {expect}", ", expect: [{row: x, figure: sps}]")
    )
    assert run(["compare", "s", "--expect", str(other), "-o", "json"]) == 0
    assert [(one["row"], one["verdict"]) for one in _json(capsys)["expected"]] == [("CV C-8 x", "unknown")]
    assert run(["compare", "s", "--expect", "none", "-o", "json"]) == 0
    assert _json(capsys)["expected"] == []
    assert run(["compare", MadeRuns.made[0], "--expect", str(other)]) == 2
    assert "only for a single study with a `compare.baseline`" in capsys.readouterr().err
    assert "Published, replayed, emulated" not in text
    assert (tmp_path / "c_files" / "gains.csv").is_file()
    assert run(["compare", "s", "-o", "csv"]) == 0
    assert capsys.readouterr().out.startswith("experiment,label,figure,value,n,ratio,ratio_low,ratio_high,")


def test_held_out_accuracies_are_compared(study: str, own_home: Path, capsys: pytest.CaptureFixture[str]):
    entries = [
        f"{{experiment: {name}, label: s{seed}, set: {{seed: {seed}}}}}"
        for name in ("geo-a2", "geo-b2")
        for seed in (1, 2, 3)
    ]
    held_out = "held_out: {of: geo-b2, against: geo-a2}"
    Path(study).write_text(
        f"name: s\nexperiments: [{', '.join(entries)}]\ncompare: {{replay: never, {held_out}}}\n"
    )
    assert run(["study", "run", study, "--yes", "--only", "geo-a2*", "-o", "json"]) == 0
    half = _json(capsys)["comparison"]["held_out"]
    assert (half["of"]["n"], half["against"]["n"], half["inside"]) == (0, 3, None)
    assert half["why"] == "geo-b2 has 0 runs with a held-out accuracy, and a standard deviation needs two"
    MadeRuns.made.clear()
    assert run(["study", "run", study, "--yes"]) == 0
    assert "no verdict: the values of accuracy do not vary" in capsys.readouterr().out
    for made, value in zip(MadeRuns.made, (0.90, 0.92, 0.94, 0.91, 0.92, 0.96), strict=True):
        with RunStore.open_writer(own_home / "runs" / made / "run.db") as store:
            store.set_meta("evaluations", [{**store.meta("evaluations")[0], "accuracy": value}])
    assert run(["compare", "s", "-o", "json"]) == 0
    found = _json(capsys)["held_out"]
    assert (found["of"]["n"], found["against"]["n"], found["inside"]) == (3, 3, True)
    assert found["against"]["mean"] == pytest.approx(0.92)
    assert found["difference"] == pytest.approx(0.01)
    assert found["pooled_sd"] == pytest.approx(0.00055**0.5)  # variances 0.0004 and 0.0007
    assert [r["seed"] for r in found["of"]["runs"]] == [1, 2, 3]
    assert {r["samples"] for r in found["of"]["runs"]} == {3 * 4096}
    assert run(["compare", "s"]) == 0
    shown = capsys.readouterr().out
    assert "geo-b2  mean 0.9300, standard deviation 0.0265, n 3 (0.9100, 0.9200, 0.9600)" in shown
    assert "pooled standard deviation 0.0235: less than 2 of them (0.0469)" in shown
    assert run(["compare", *MadeRuns.made, "-o", "json"]) == 0
    found = _json(capsys)
    assert found["held_out"] is None
    assert found["rows"][0]["evaluation"] == {"loss": 0.2, "accuracy": 0.9}
    assert "HELD-OUT" not in shown  # loss and accuracy are in other tables
    with RunStore.open_writer(own_home / "runs" / MadeRuns.made[0] / "run.db") as store:
        store.set_meta("evaluations", [{**store.meta("evaluations")[0], "metrics": {"wer": 0.25}}])
    assert run(["compare", "s"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["HELD-OUT", "RUN", "LOSS", "ACCURACY", "WER"] in lines
    assert ["CV", "A-2", "s1", MadeRuns.made[0], "0.2", "90.0%", "0.25"] in lines


def test_runs_are_compared_by_name_and_drawn_on_a_page(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["study", "run", study, "--yes", "--only", "geo-c8"]) == 0
    (run_id,) = MadeRuns.made
    capsys.readouterr()
    assert run(["compare", run_id, "-o", "json"]) == 0
    document = _json(capsys)
    assert document["study"] is None
    (row,) = document["rows"]
    assert (row["experiment"], row["run_id"], row["attempts"], row["replayed"]) == ("CV C-8", run_id, 1, None)
    judged = {c["figure"]: c["inside"] for c in document["checks"] if c["scope"] == "each"}
    assert set(judged) == {"sps", "comm_s", "egress_bytes_per_vm_epoch"}
    page = tmp_path / "c.html"
    assert run(["compare", "s", "-o", "csv", "--report", str(page)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].startswith(
        "experiment,run_id,figure,published,replayed,emulated,difference,inside"
    )
    assert shown.out.splitlines()[1].startswith("CV C-8 x,")
    assert f"report: {page}" in shown.err
    assert (tmp_path / "c_files" / "comparison.csv").is_file()
    text = page.read_text()
    section = text[text.index("<h2>Published, replayed, emulated") :].partition("</section>")[0]
    assert "Emulated: 1 run." in section
    assert "Kendall&#x27;s tau" not in text  # of one run of the study
    assert text.count("<svg") >= 5
    assert run(["compare", "s", "--limits", "none"]) == 0
    assert "OUTSIDE" not in (shown := capsys.readouterr()).out
    assert shown.out.splitlines()[0].split()[:3] == ["EXPERIMENT", "ON", "EPOCH"]
    assert " 115 / 143 (" in shown.out  # calculation: published / emulated
    assert " emulated " in shown.out
    assert run(["compare", "s", "--wide"]) == 0
    assert " 115 / - / 143 (" in capsys.readouterr().out
    assert run(["compare", "s", "--limits", str(tmp_path / "no.csv")]) == 2
