"""The report on an input: each part's section and files, what is unknown, and what is not replaced."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_input import map_document, trace_document
from made_up_profile import imagenet, profile

from analysis.pipeline.plan import PART_WORDS, plan_pipeline
from analysis.pipeline.presto_score import Weights
from analysis.report.pipeline.build import build
from analysis.report.pipeline.parts import Parts, PlanPart
from analysis.report.pipeline.profile_sections import MOST_BARS
from experiments.parse.load import load
from orchestrator.pipeline.plan_setting import plan_setting


def rows(page: Path, name: str) -> list[dict[str, str]]:
    """The rows of a figure's CSV, whose PNG and SVG must be there."""
    for kind in ("png", "svg"):
        assert (page.parent / f"{name}.{kind}").stat().st_size > 1000
    with (page.parent / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_trace_s_operations_and_waits(tmp_path: Path):
    page = build(Parts("imagenet", trace=trace_document()), tmp_path / "report")
    found = rows(page, "operations")
    assert [(row["op"], float(row["wall_s"]), row["cpu_s"]) for row in found] == [
        ("decode", 5.0, "2.5"),
        ("crop", 2.0, "1.0"),
        ("flip", 0.1, ""),
    ]
    one, two = rows(page, "waiting")
    assert (one["name"], one["samples_per_s_low"], two["name"], two["samples_per_s_low"]) == (
        "1 thread",
        "130.0",
        "2 threads",
        "",
    )
    assert (float(one["wait_s"]), one["delay_s"], float(two["delay_s"])) == (pytest.approx(0.2), "", 0.01)
    text = page.read_text()
    assert "More than 2 workers gain &lt;little&gt;." in text
    assert "200 samples/s" in text
    assert "interval unknown" in text


def test_a_map_s_first_functions(tmp_path: Path):
    page = build(Parts("imagenet", map=map_document()), tmp_path / "report")
    found = [(row["function"], float(row["share_percent"])) for row in rows(page, "map")]
    assert found == [
        ("decode_0", 70.0),
        ("decode_1", 15.0),
        ("decode_2", 10.0),
        ("decode_3", 3.0),
        ("crop_0", 100.0),
    ]
    text = page.read_text()
    assert "decode: decode_0 (_imaging)" in text
    assert "cycles: unknown (this machine has no counter)" in text
    assert "attributes 20.3 % of the samples otherwise" in text
    exact = map_document(unit="instructions", frequency_hz=None, seconds=None, lotus=None)
    for row in exact["functions"]:
        row["low"] = row["high"] = None
    assert "counted by callgrind" in build(Parts("x", map=exact), tmp_path / "exact").read_text()


def test_strategies_and_their_dollars(tmp_path: Path):
    made, spec = profile(), load("geo-b2", (), ())
    setting = plan_setting(spec, made, samples=1_281_167)
    plan = plan_pipeline(made, setting.setting, [1, 30], Weights(1, 1, 1))
    part = PlanPart(
        spec.name, plan, ("1 pass: nothing pays.", "30 passes: cache it."), ("prices are prices",)
    )
    page = build(Parts("geo-b2", profile=made, plan=part), tmp_path / "report")
    measured = {row["strategy"]: row for row in rows(page, "strategies")}
    assert len(measured) == len(imagenet())
    assert float(measured["0-none-s1-w2t-none"]["t4_sps"]) == 329.0
    assert measured["0-none-s1-w1t-none"]["t3_sps"] == ""
    options = rows(page, "options")
    assert len(options) == 2 * len(imagenet())
    for row in options:
        parts = sum(float(row[part]) for part in PART_WORDS)
        assert parts == pytest.approx(float(row["usd_per_1m"]))
    text = page.read_text()
    for words in (
        "1 pass over the data set",
        "30 passes over the data set",
        "30 passes: cache it.",
        "prices are prices",
    ):
        assert words in text


def test_unknown_dollars_are_unknown(tmp_path: Path):
    made, spec = profile(), load("geo-b2", ("data.location=aws/us-west-2",), ())
    setting = plan_setting(spec, made)
    plan = plan_pipeline(made, setting.setting, [1], Weights(1, 1, 1))
    page = build(Parts("geo-b2", profile=made, plan=PlanPart("geo-b2", plan, (), ())), tmp_path / "report")
    assert {row["usd_per_1m"] for row in rows(page, "options")} == {""}
    assert '<div class="value">unknown</div>' in page.read_text()


def test_a_figure_shows_the_fastest_of_many(tmp_path: Path):
    first = imagenet()[0]
    many = [
        replace(
            first,
            strategy=replace(first.strategy, streams=k),
            delivered_sps=replace(first.delivered_sps, value=float(k), low=None, high=None),
        )
        for k in range(1, MOST_BARS + 6)
    ]
    page = build(Parts("x", profile=profile(*many)), tmp_path / "report")
    assert len(rows(page, "strategies")) == MOST_BARS + 5
    svg = (page.parent / "strategies.svg").read_text()
    assert svg.count("-w1t-none") == MOST_BARS
    assert f"the {MOST_BARS} fastest of {MOST_BARS + 5} strategies" in page.read_text()


def test_what_is_missing_and_warnings_are_said(tmp_path: Path):
    parts = Parts(
        "x", map=map_document(), missing=("The trace: <measure it>.",), warnings=("Left out: a & b.",)
    )
    text = build(parts, tmp_path / "report").read_text()
    assert "The trace: &lt;measure it&gt;." in text
    assert "Left out: a &amp; b." in text


def test_an_older_report_is_replaced_and_other_files_are_not(tmp_path: Path):
    folder = tmp_path / "report"
    build(Parts("x", trace=trace_document()), folder)
    page = build(Parts("x", map=map_document()), folder)
    assert not (folder / "operations.csv").exists()
    assert page == folder / "report.html"
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(OSError, match=r"it holds thesis\.tex, which is not of such a report"):
        build(Parts("x", map=map_document()), other)
    (other / "report.html").write_text("my report")
    with pytest.raises(OSError, match=r"thesis\.tex"):
        build(Parts("x", map=map_document()), other)
    assert sorted(path.name for path in other.iterdir()) == ["report.html", "thesis.tex"]
    assert (other / "report.html").read_text() == "my report"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "report"]
