"""Published, replayed and emulated figures: rank correlation, limits, and the document's keys."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_run import write_run
from rows_to_compare import a_run, ran
from scipy.stats import kendalltau

from analysis.compare.differences import Differences, own_run
from analysis.compare.paper import run_name
from analysis.compare.published import (
    KEYS,
    ComparedRun,
    comparable,
    compare_document,
    judge,
    kendall_tau_b,
    long_rows,
)
from analysis.compare.published_runs import compared_run, replayed_figures
from analysis.compare.rows import difference_rows
from analysis.replay import read_folder
from analysis.report.study.build import build
from analysis.report.study.build import load as load_runs
from analysis.report.study.comparison import (
    Compared,
    cards,
    comparison,
    study_checks,
    unlike_published,
    wide_rows,
)
from cloud.prices.book import load as load_book
from experiments.catalog import published
from experiments.study_file.limits import Limit, read_limits
from experiments.study_file.load import STUDIES, load_study
from metrics.store.database import RunStore

LIMITS = read_limits(STUDIES / "paper-abc-limits.csv")


def off(row: ComparedRun, figure: str, share: float) -> ComparedRun:
    """The run with one figure off the published one by a share."""
    value = row.published[figure]
    assert value is not None
    return replace(row, emulated={**row.emulated, figure: value * (1 + share)})


def test_kendall_s_tau_by_hand():
    assert kendall_tau_b([(1, 10), (2, 20), (3, 30)]) == 1.0
    assert kendall_tau_b([(1, 30), (2, 20), (3, 10)]) == -1.0
    # pairs: 1-2 +, 1-3 +, 1-4 +, 2-3 -, 2-4 +, 3-4 +: (5 - 1) / 6
    assert kendall_tau_b([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(4 / 6)
    # one tie on the first side: (5 - 0) / sqrt(5 x 6)
    assert kendall_tau_b([(1, 1), (1, 2), (3, 3), (4, 4)]) == pytest.approx(5 / math.sqrt(30))
    for unknown in ([], [(1, 2)], [(1, 2), (1, 3)]):
        assert kendall_tau_b(unknown) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=30))
def test_kendall_s_tau_equals_scipy_s(pairs):
    expected = kendalltau([a for a, _ in pairs], [b for _, b in pairs], variant="b").statistic
    ours = kendall_tau_b(pairs)
    assert (ours is None) == math.isnan(expected)
    assert ours is None or ours == pytest.approx(expected)


def test_the_document_has_the_agreed_keys():
    row = a_run(replayed={"sps": 341.0})
    document = json.loads(json.dumps(compare_document("paper-abc-20261121-1a2b", [row], LIMITS)))
    assert document["schema_version"] == 1
    assert document["study"] == "paper-abc-20261121-1a2b"
    (shown,) = document["rows"]
    assert list(shown) == [
        "experiment", "run_id", "published", "emulated", "replayed", "host_contended", "dropped_rounds", "attempts",
        "target", "origin", "scales", "evaluation", "predicted", "more_peers",
    ]  # fmt: skip
    for part in ("published", "emulated", "replayed"):
        assert tuple(shown[part]) == KEYS
    assert shown["published"]["egress_bytes_per_vm_epoch"] == pytest.approx(1.99e9)
    assert shown["published"]["granularity"] == 0.6  # by wall clock, not the paper's 0.4
    assert shown["replayed"] == {"sps": 341.0} | dict.fromkeys(KEYS[1:])
    assert document["kendall_tau"] is None  # one run has no rank
    assert compare_document("s", [a_run()])["rows"][0]["replayed"] is None


def test_contended_run_is_listed_but_does_not_count():
    rows = [a_run("CV A-2"), a_run("CV A-4"), off(a_run("CV A-8", host_contended=True), "sps", -0.9)]
    document = compare_document("s", rows, LIMITS)
    assert [row["host_contended"] for row in document["rows"]] == [False, False, True]
    assert document["kendall_tau"] == 1.0
    assert document["compared"] == 2
    assert not [c for c in document["checks"] if c["experiment"] == "CV A-8"]
    asked = compare_document("s", rows, LIMITS, include_contended=True)
    assert asked["kendall_tau"] == pytest.approx(-1 / 3)
    assert [c["inside"] for c in asked["checks"] if c["experiment"] == "CV A-8" and c["figure"] == "sps"] == [
        False
    ]
    assert comparable([a_run(host_contended=None)])  # unknown counts as not contended


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("CV A-1", 36.8 * 0.95, 36.8 * 1.05),
        ("NLP A-8", 575.1 * 0.95, 575.1 * 1.05),
        ("CV B-6", 199.8 * 0.95, 199.8 * 1.05),
        ("CV C-8", 244.3 * 0.95, 244.3 * 1.05),
        ("NLP B-2", 177.3 * 0.9, 177.3 * 1.1),
        ("NLP C-4", 241.9 * 0.9, 241.9 * 1.1),
        ("NLP B-8", 401.4 * 0.9, 494.6 * 1.1),
        ("NLP C-6", 316.8 * 0.9, 334.5 * 1.1),
        ("NLP C-8", 328.2 * 0.9, 353.1 * 1.1),
    ],
)
def test_accepted_range_of_throughput(name, low, high):
    (check,) = [c for c in judge([a_run(name)], LIMITS) if c.scope == "each" and c.figure == "sps"]
    assert (check.low, check.high) == (pytest.approx(low), pytest.approx(high))
    assert check.inside


def test_every_figure_is_judged_at_its_limit():
    row = a_run("CV B-2")
    for figure, limit in (("sps", 0.05), ("comm_s", 0.30), ("egress_bytes_per_vm_epoch", 0.05)):
        for share, inside in (
            (limit - 1e-6, True),
            (limit + 1e-6, False),
            (1e-6 - limit, True),
            (-limit - 1e-6, False),
        ):
            checks = [c for c in judge([off(row, figure, share)], LIMITS) if c.scope == "each"]
            assert [c.inside for c in checks if c.figure == figure] == [inside], (figure, share)
    unknown = replace(row, emulated={**row.emulated, "comm_s": None})
    assert [c.inside for c in judge([unknown], LIMITS) if c.scope == "each" and c.figure == "comm_s"] == [
        None
    ]
    alone = [c.figure for c in judge([a_run("NLP A-1")], LIMITS) if c.scope == "each"]
    assert alone == ["sps"]  # it has no communication


def test_medians_and_the_study_as_a_whole():
    rows = [off(a_run(n), "comm_s", s) for n, s in (("CV A-2", 0.1), ("CV A-3", -0.2), ("CV A-4", 0.16))]
    whole = {c.figure: c for c in judge(rows, LIMITS) if c.scope != "each"}
    assert whole["comm_s"].found == pytest.approx(0.16)
    assert whole["comm_s"].inside is False
    assert whole["kendall_tau"].inside is True
    assert whole["host_contended"].inside is True
    four = [replace(row, host_contended=True) for row in [*rows, a_run("CV A-6")]]
    assert {c.figure: c.inside for c in judge(four, LIMITS)} == {
        "comm_s": None, "kendall_tau": None, "host_contended": False,
    }  # fmt: skip
    lines = study_checks(Compared(rows, LIMITS))
    assert lines[0] == "median difference of communication, s: 16.0% (at most 15.0%: OUTSIDE)"


def test_some_runs_of_a_study_are_not_judged_as_the_whole():
    rows = [off(a_run(n), "sps", s) for n, s in (("CV A-2", 0.0), ("CV A-4", -0.6), ("NLP A-2", 0.9))]
    found = [c for c in judge(rows, LIMITS, whole=False) if c.scope != "each"]
    tau = next(c for c in judge(rows, LIMITS) if c.figure == "kendall_tau")
    assert tau.inside is False  # as a whole they are outside
    assert {c.figure: c.inside for c in found} == dict.fromkeys(("comm_s", "kendall_tau", "host_contended"))
    assert next(c.found for c in found if c.figure == "kendall_tau") == tau.found
    each = [c.inside for c in judge(rows, LIMITS) if c.scope == "each"]
    assert [c.inside for c in judge(rows, LIMITS, whole=False) if c.scope == "each"] == each
    shown = study_checks(Compared(rows, LIMITS, whole=False))
    assert [line for line in shown if "OUTSIDE" in line] == []
    assert any("at least 0.95: not judged, needs all runs of the study" in line for line in shown)
    assert "not the whole study" in cards(Compared(rows, LIMITS, whole=False))[0].more
    assert [c.name for c in cards(Compared(rows[:1], whole=False))] == []


def test_the_shipped_limits_judge_all_28():
    names = [run_name(known) for m in load_study("paper-abc").members if (known := published(m.spec.name))]
    judged = [c for c in judge([a_run(name) for name in names], LIMITS) if c.scope == "each"]
    assert len([c for c in judged if c.figure == "sps"]) == 28
    assert len([c for c in judged if c.figure == "comm_s"]) == 26
    assert len([c for c in judged if c.figure == "egress_bytes_per_vm_epoch"]) == 26
    assert all(c.inside for c in judge([a_run(name) for name in names], LIMITS))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("some,*,sps,0.1,published,why", r"l.csv:2: a row needs scope"),
        ("each,*,speed,0.1,published,why", r"l.csv:2: a row needs"),
        ("study,*,sps,0.1,,why", r"kendall_tau, host_contended"),
        ("each,*,sps,much,published,why", r"l.csv:2: limit 'much' is not a number"),
        ("each,*", "a row needs"),
        ("each,*,sps,nan,published,why", r"l.csv:2: limit 'nan' is not a number"),
        ("", r"l.csv:1: has no limit"),
    ],
)
def test_invalid_limit_error_names_its_line(tmp_path: Path, line: str, says: str):
    (tmp_path / "l.csv").write_text(f"scope,experiments,figure,limit,around,why\n{line}\n")
    with pytest.raises(ValueError, match=says):
        read_limits(tmp_path / "l.csv")


def test_a_run_s_own_numbers(tmp_path: Path):
    row = compared_run(read_folder(ran(tmp_path)), {"CV C-8": {"sps": 244.0}}, "wan", 3)
    assert (row.experiment, row.attempts, row.dropped_rounds, row.host_contended) == (
        "CV C-8 wan",
        3,
        0,
        False,
    )
    assert row.published["sps"] == 244.3
    assert row.replayed == {"sps": 244.0}
    assert row.emulated["comm_s"] == pytest.approx(12.2625)
    assert row.emulated["calc_s"] == pytest.approx(8 * (30 - 12.2625))
    assert row.emulated["egress_bytes_per_vm_epoch"] > 0
    assert isinstance(Limit("each", "*", "sps", 0.1, "published", ""), Limit)


@pytest.mark.parametrize(
    ("target", "emulated", "contended", "origin", "host"),
    [
        ("local", True, False, "emulated", ""),
        ("local", True, None, "emulated", "unknown"),
        ("local", True, True, "emulated", "TOO BUSY"),
        ("loopback", True, None, "loopback", "unknown"),
        ("sky", False, None, "rented", ""),
        ("sky", True, None, "rented, padded", ""),
        ("imported", False, None, "logs", ""),
        (None, None, None, "unknown", "unknown"),
    ],
)
def test_origin_of_a_run_is_shown_with_its_figures(target, emulated, contended, origin, host):
    scales = {"bytes": 100, "time": 1, "samples": 8}
    row = a_run(target=target, is_emulated=emulated, host_contended=contended, scales=scales)
    (shown,) = compare_document(None, [row])["rows"]
    assert (shown["target"], shown["origin"], shown["scales"]) == (target, origin, scales)
    line = long_rows([row])[0]
    assert (line["origin"], line["scales"]) == (origin, "bytes 100, time 1, samples 8")
    (wide,) = wide_rows(Compared([row]))
    assert (wide["on"], wide["host"]) == (origin, host)
    assert bool(comparable([row])) is not (contended is True)  # unknown: it counts


def test_kendall_s_tau_is_shown_without_a_limit():
    rows = [a_run("CV A-2"), a_run("CV A-4")]
    assert study_checks(Compared(rows)) == ["Kendall's tau of the mean epoch rates: 1 (2 runs, no limit)"]
    assert len([lines for lines in study_checks(Compared(rows, LIMITS)) if "tau" in lines]) == 1
    assert study_checks(Compared(rows[:1])) == []


def test_the_page_names_runs_of_one_name_and_says_why_there_is_no_comparison():
    one, two = a_run("CV B-2", run_id="r1"), a_run("CV B-2", run_id="r2", not_judged="the paper has no x")
    assert [line["run"] for line in wide_rows(Compared([one, two]))] == ["r1", "r2"]
    assert [line["judged"] for line in wide_rows(Compared([one, two], LIMITS))] == ["inside", "not judged"]
    assert "run" not in wide_rows(Compared([one]))[0]
    section = comparison(Compared([one, two]))
    assert section is not None
    assert "Shown but not judged: 1 run (the paper has no x)." in section.notes
    assert cards(Compared([one]))[0].more == "mean of epoch rates, 1 run"
    alone = ComparedRun("mine", "r", {}, {"sps": 5.0}, None, False, 0, 1, not_judged="nothing of 'mine'")
    assert comparison(Compared([alone])) is None
    assert unlike_published(Compared([alone])) == []  # nobody expects figures of the paper beside it


def test_each_figure_is_drawn_below_the_last():
    section = comparison(Compared([a_run("CV B-2"), a_run("NLP B-2")]))
    assert section is not None
    axes = section.draw().axes
    assert len(axes) == 4
    assert len({round(a.get_position().x0, 3) for a in axes}) == 1
    assert len({round(a.get_position().y0, 3) for a in axes}) == 4


@pytest.mark.slow
def test_a_page_says_why_a_run_of_a_published_name_has_no_published_figures(tmp_path: Path):
    folder = ran(tmp_path / "run", "swarm.target_batch_size=16384")
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("published", None)
    runs, problems = load_runs([folder], load_book("study-2023-04"))
    read, page = read_folder(folder), tmp_path / "c.html"
    build(
        runs,
        page,
        load_book("study-2023-04"),
        problems=problems,
        compared=Compared([compared_run(read, {})], differences=Differences((own_run(read),))),
    )
    text = page.read_text()
    assert "Published, replayed, emulated" not in text
    assert "geo-c8 (geo-c8-20231114-aaaa) has no published figures: not the paper&#x27;s experiment: " in text
    assert "swarm.target_batch_size 16384 instead of 32768." in text
    assert "Centralised baselines" not in text
    assert "1 run compared" in text
    assert "1 runs" not in text


@pytest.mark.slow
def test_a_page_has_no_published_figures_of_a_run_that_the_comparison_has_none_of(tmp_path: Path):
    """One run keeps its whole experiment, the other its name only; both have the paper's figures in their meta."""
    known, folders = published("geo-c8"), [ran(tmp_path / "whole"), tmp_path / "named"]
    assert known is not None
    folders[1].mkdir()
    write_run(folders[1])
    for folder, run_id in zip(folders, ("r-whole", "r-named"), strict=True):
        with RunStore.open_writer(folder / "run.db") as store:
            store.set_meta("published", asdict(known))
            store.set_meta("run_id", run_id)
    book = load_book("study-2023-04")
    runs, problems = load_runs(folders, book)
    rows = [compared_run(read_folder(folder), {}) for folder in folders]
    assert [bool(row.published) for row in rows] == [True, False]
    for compared, count in ((None, 2), (Compared(rows), 1)):
        build(runs, tmp_path / "c.html", book, problems=problems, compared=compared)
        with (tmp_path / "c_files" / "beside-the-study.csv").open(newline="") as file:
            assert len({row["name"] for row in csv.DictReader(file)}) == count


def test_granularity_differs_from_the_seconds_it_is_made_of(tmp_path: Path):
    """36.8 / 59.0 is printed as 0.6: a run that equals the published one must not be +4 % off."""
    known = published("geo-c8-nlp")
    assert known is not None
    folder = ran(tmp_path, name="geo-c8-nlp")
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("published", asdict(known))
    runs, _ = load_runs([folder], load_book("study-2023-04"))
    (row,) = [r for r in difference_rows(runs) if r["figure"] == "granularity, wall clock"]
    assert known.granularity_wall == 0.6
    assert row["study"] == pytest.approx(known.calc_s / known.comm_s)


@pytest.mark.slow
def test_the_study_s_own_logs_are_replayed_by_their_names(paper_traces: Path):
    figures, problems = replayed_figures(paper_traces)
    assert not problems
    assert figures["CV A-1"]["sps"] == pytest.approx(36.8, rel=0.001)
    for name in ("NLP A-8", "CV B-2", "NLP B-8"):
        for figure, value in a_run(name).published.items():
            assert figures[name][figure] == pytest.approx(value, rel=0.06), (name, figure)
