"""Which runs are compared with the paper's figures, and the reasons for the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import write_run
from rows_to_compare import a_run, ran

from analysis.compare.published import (
    ComparedRun,
    compare_document,
    difference,
    judge,
    kendall_tau,
    long_rows,
)
from analysis.compare.published_runs import compared_run
from analysis.compare.rows import difference_rows
from analysis.replay import read_folder
from analysis.report.study.build import load as load_runs
from analysis.report.study.comparison import Compared, comparison, wide_rows
from cloud.prices.book import load as load_book
from experiments.catalog import published, published_runs
from experiments.parse.load import load
from experiments.study_file.basis import paper_basis
from experiments.study_file.limits import read_limits
from experiments.study_file.load import STUDIES
from metrics.store.database import RunStore

LIMITS = read_limits(STUDIES / "paper-abc-limits.csv")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("swarm.target_batch_size=16384", "swarm.target_batch_size 16384 instead of 32768"),
        ("swarm.batch_size=16", "swarm.batch_size 16 instead of 32"),
        ("model=RoBERTaXLM", "model RoBERTaXLM instead of ConvNextLarge"),
        ("peers[0].count=1", " + 1 x T4:1 in gcp/us-central1/us-central1-a instead of 2 x "),
        ("peers[1].resources.infra=gcp/europe-west1/europe-west1-c", "T4:1 in gcp/europe-west1/europe-west1-c"),
        ("peers[2].resources.accelerators=A10:1", "A10:1 in gcp/asia-east1/asia-east1-a"),
    ],
)  # fmt: skip
def test_only_the_paper_s_experiment_has_published_figures(tmp_path: Path, override: str, says: str):
    row = compared_run(read_folder(ran(tmp_path, override)), {"CV C-8": {"sps": 244.0}})
    assert row.experiment == "geo-c8"
    assert (row.published, row.replayed) == ({}, None)
    assert says in row.not_judged
    document = compare_document(None, [row, a_run("CV A-2"), a_run("CV A-4")], LIMITS)
    assert document["rows"][0]["published"] is None
    assert document["left_out"] == [{"experiment": "geo-c8", "run_id": row.run_id, "why": row.not_judged}]
    assert (document["compared"], document["kendall_tau"]) == (2, 1.0)
    assert row.run_id not in {check["run_id"] for check in document["checks"]}


def test_irrelevant_settings_do_not_prevent_judging():
    for free in ("seed=7", "measure.epochs=5", "budget_usd=3", "swarm.optimizer.lr=0.1", "peers[0].name=x"):
        basis = paper_basis(load("geo-c8", [free], shipped=True))
        assert (basis.published, basis.options) == (published("geo-c8"), ())
    for name in published_runs():
        basis = paper_basis(load(name, shipped=True))
        assert (basis.published, basis.why, basis.options) == (published(name), "", ())


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("swarm.compression=uniform8bit", "uses swarm.compression uniform8bit, which the paper did not"),
        ("swarm.averaging=hierarchical", "uses swarm.averaging hierarchical, which the paper did not"),
        ("network_tuning=wan", "uses network_tuning wan, which the paper did not"),
        ("emulation.path_model=none", "uses emulation.path_model none, which the paper did not"),
        ("emulation.preempt={at_s: 5}", "uses emulation.preempt, which the paper did not"),
    ],
)
def test_option_is_shown_but_not_judged(tmp_path: Path, override: str, says: str):
    folder = ran(tmp_path, override)
    row = compared_run(read_folder(folder), {})
    assert (row.published["sps"], row.not_judged) == (244.3, says)
    contended = replace(row, host_contended=True)
    document = compare_document(None, [contended, a_run("CV A-2")], LIMITS, include_contended=True)
    assert document["rows"][0]["published"]["sps"] == 244.3
    assert document["compared"] == 1
    assert row.run_id not in {check["run_id"] for check in document["checks"]}
    (share,) = (check for check in document["checks"] if check["figure"] == "host_contended")
    assert share["found"] == 0  # runs that are not judged do not count
    assert compared_run(read_folder(folder), {}, judged=True).not_judged == ""


def test_loopback_run_is_not_ranked_or_judged(tmp_path: Path):
    folder = ran(tmp_path)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("target", "loopback")
    for judged in (None, True):
        row = compared_run(read_folder(folder), {}, judged=judged)
        assert (row.published["sps"], row.not_judged) == (244.3, "loopback: no distance")
    document = compare_document(None, [row, a_run("CV A-2")], LIMITS, include_contended=True)
    assert (document["rows"][0]["target"], document["rows"][0]["origin"]) == ("loopback", "loopback")
    assert (document["compared"], document["kendall_tau"]) == (1, None)
    assert row.run_id not in {check["run_id"] for check in document["checks"]}
    (line,) = wide_rows(Compared([row], LIMITS))
    assert (line["on"], line["judged"]) == ("loopback", "not judged")
    runs, _ = load_runs([folder], load_book("study-2023-04"))
    assert difference_rows(runs) == []


def test_labelled_run_is_not_judged_by_default(tmp_path: Path):
    folder = ran(tmp_path)
    assert "the label 'wan'" in compared_run(read_folder(folder), {}, "wan").not_judged
    assert compared_run(read_folder(folder), {}, "wan", judged=True).not_judged == ""
    assert "judged: false" in compared_run(read_folder(folder), {}, judged=False).not_judged
    other = compared_run(read_folder(ran(tmp_path / "b", "swarm.batch_size=8")), {}, judged=True)
    assert other.published == {}  # saying so makes no figures
    assert other.not_judged


def test_run_without_complete_experiment_has_no_published_figures(tmp_path: Path):
    write_run(tmp_path)  # which keeps a name only
    row = compared_run(read_folder(tmp_path), {})
    assert (row.experiment, row.published) == ("geo-c8", {})
    assert "has no complete experiment stored" in row.not_judged


def test_an_unpublished_run_is_not_judged():
    row = ComparedRun("local-2", "r", {}, {"sps": 5.0}, None, False, 0, 1)
    assert difference(row, "sps") is None
    assert not [c for c in judge([row], LIMITS) if c.scope == "each"]
    assert kendall_tau([row, row]) is None
    assert [r["figure"] for r in long_rows([row])] == ["sps"]
    assert comparison(Compared([row], LIMITS)) is None
