"""The page of `orch advise --report`: what is predicted and what is measured is told apart, and nothing is hidden."""

from __future__ import annotations

import csv
import re
from datetime import date
from functools import cache
from html import unescape
from pathlib import Path

import pytest
import yaml
from made_up_run import write_run

from analysis.charts.groups import styles
from analysis.compare.measured import MeasuredRuns, measured_runs
from analysis.planning.advice import Advice, advise, why
from analysis.planning.search import Goals
from analysis.report.advice import build, rows_of
from analysis.report.files import csv_text
from cloud.prices.book import load
from experiments.parse import load as load_spec
from experiments.parse.load import from_document
from experiments.schema.models import ExperimentSpec, Resources
from metrics.store.database import RunStore

BOOK = load("study-2023-04")
US, AUS = "gcp/us-central1/us-central1-a", "gcp/australia-southeast1/australia-southeast1-a"
DAY = date(2026, 11, 28)


@cache
def spec_of(name: str) -> ExperimentSpec:
    return load_spec(name, shipped=True)


@cache
def advice_on(goals: Goals = Goals(), limit: int = 60_000) -> Advice:
    places = [Resources(infra=at, accelerators="T4:1", use_spot=True) for at in (US, AUS)]
    far = Resources(infra="gcp/southamerica-east1/southamerica-east1-a", accelerators="T4:1", use_spot=True)
    return advise({"": spec_of("geo-c8")}, [*places, far], range(2, 6), goals, BOOK, rows=4, limit=limit)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRuns:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    write_run(folder, peers=2, epochs=3)
    value = {"value": 300.0, "low": 250.0, "high": 350.0}
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("plan", {"prediction": {"sps": value}})
    return measured_runs([folder, folder.with_name("gone")], "geo-c8", "ConvNextLarge", 32768)


@pytest.fixture(scope="module")
def page(measured: MeasuredRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(advice_on(), measured, tmp_path_factory.mktemp("page") / "advice.html", DAY)


def section(html: str, title: str) -> str:
    return html.split(f"<h2>{title}</h2>")[1].partition("</section>")[0]


def test_the_first_line_says_what_the_figures_rest_on(page: Path):
    html = page.read_text()
    first = html[html.index("<header>") : html.index("<h1>")]
    assert (
        "Predicted, not measured, on 2026-11-28: samples/s by the network study-2023-04 and the path model study"
        in first
    )
    assert f"the price book study-2023-04.csv, newest price of {BOOK.newest_date}" in first


def test_each_proposal_has_its_figures_sentence_and_file(page: Path):
    shown = section(page.read_text(), "Proposals")
    files = [unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", shown, re.DOTALL)]
    proposals = advice_on().proposals
    assert [from_document(yaml.safe_load(text)) for text in files] == [p.spec for p in proposals]
    for k, p in enumerate(proposals, 1):
        assert f'<td class="text">a{k}</td>' in shown
        assert f"<strong>a{k}</strong>" in shown
        assert why(p) in unescape(shown)
        assert f"{p.sps.value:.4g} [{p.sps.low:.4g}, {p.sps.high:.4g}]" in shown
        assert f"{p.usd_per_1m.value:.4g} [{p.usd_per_1m.low:.4g}, {p.usd_per_1m.high:.4g}]" in shown


def test_predicted_and_measured_points_differ_in_shape(measured: MeasuredRuns):
    rows = rows_of(advice_on(), measured.runs)
    looks = styles(str(row["group"]) for row in rows)
    shapes = {
        kind: {looks[str(row["group"])]["marker"] for row in rows if (row["origin"] == "predicted") is kind}
        for kind in (True, False)
    }
    assert shapes[True] == {"x", "+"}
    assert len(shapes[False]) == 2  # measured, and as the paper printed them
    assert not shapes[True] & shapes[False]
    colours = {row["group"]: looks[str(row["group"])]["color"] for row in rows}
    assert len(set(colours.values())) == len(colours) == 4
    assert [row["front"] for row in rows] == [row["name"] in ("a1", "a2", "a3", "a4") for row in rows]


def test_the_legend_names_what_is_predicted_and_what_is_measured(page: Path):
    html = section(page.read_text(), "Cost against throughput")
    svg = html[html.index("<svg") : html.index("</svg>")]
    for words in ("proposals, predicted", "one VM, predicted", "measured on this machine", "centralised"):
        assert f">{words}<" in svg
    assert ">Pareto set<" in svg
    assert ">half filled: emulated<" in svg
    assert "Crosses are predicted" in html[html.index("</figure>") :]


def test_files_of_the_figure_have_the_rows(page: Path, measured: MeasuredRuns):
    folder = page.with_name("advice_files")
    assert {path.name for path in folder.iterdir()} == {
        "advice.csv",
        "advice.png",
        "advice.svg",
        "proposals.csv",
    }
    rows = rows_of(advice_on(), measured.runs)
    assert (folder / "advice.csv").read_text() == csv_text(rows)
    read = list(csv.DictReader((folder / "proposals.csv").read_text().splitlines()))
    assert [row["name"] for row in read] == [p.spec.name for p in advice_on().proposals]
    assert [float(row["sps_low"]) for row in read] == [p.sps.low for p in advice_on().proposals]


def test_machines_in_one_place_are_compared(page: Path):
    html = page.read_text()
    shown = unescape(section(html, "When not to do it"))
    for each in advice_on().alternatives:
        assert each.name in shown
        assert each.source in shown
    assert "faster and cheaper than all of these" in shown
    assert "4xT4 DDP of the paper is faster and cheaper than all of these: see when not to do it." in html


def test_measured_runs_are_listed_with_their_predictions(page: Path, measured: MeasuredRuns):
    shown = section(page.read_text(), "Measured on this machine")
    [one] = measured.runs
    assert one.run.run_id in shown
    assert "this machine, emulated" in shown
    assert f"{one.run.figures['sps'].value:.4g} [" in shown
    assert "250 to 350" in shown
    assert "gone: cannot be read: " in shown


def test_what_was_not_searched_is_said(page: Path, tmp_path: Path):
    html = page.read_text()
    left = section(html, "What was searched, and what was not")
    assert "Not searched, because of" not in html
    assert "southamerica-east1" in left
    cut = build(advice_on(limit=3), MeasuredRuns(), tmp_path / "cut.html", DAY).read_text()
    for part in (section(cut, "What was searched, and what was not"), cut[: cut.index("<section>")]):
        assert "Not searched, because of --limit: " in part
    assert "No run of this experiment or of its proposals has a measured epoch here." in cut


def test_goals_that_contradict_each_other_show_the_nearest(tmp_path: Path):
    advice = advice_on(Goals(max_usd_per_h=0.5, min_sps=120))
    html = build(advice, MeasuredRuns(), tmp_path / "unmet.html", DAY).read_text()
    assert advice.unmet is not None
    line = "No combination meets --max-usd-per-h 0.5 and --min-sps 120 together; the nearest is"
    assert line in html[: html.index("<section>")]
    assert advice.unmet.nearest.spec.name in section(html, "The nearest combination")
    assert "Goals: --max-usd-per-h 0.5, --min-sps 120." in html
    assert not any(row["front"] for row in rows_of(advice, ()))


def test_the_page_needs_no_network_and_has_one_outline(page: Path):
    html = page.read_text()
    fetched = re.findall(r'(?:src|href)="(?!#)([^"]*)"|url\((?!#)([^)]*)\)|@import', html)
    assert fetched
    assert all("://" not in a + b for a, b in fetched)
    assert "<script" not in html
    levels = re.findall(r"<h(\d)", html)
    assert levels == ["1", *["2"] * (len(levels) - 1)]
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert (
        html.count("<table>") == html.count("<caption>") == html.count('<div class="scroll" tabindex="0"') - 1
    )
    assert "nan" not in re.findall(r"<td[^>]*>([^<]*)</td>", html)


def test_building_again_gives_the_same_bytes(page: Path, measured: MeasuredRuns, tmp_path: Path):
    again = build(advice_on(), measured, tmp_path / page.name, DAY)
    assert again.read_bytes() == page.read_bytes()


def test_a_run_whose_host_was_too_busy_is_named_first(tmp_path: Path):
    folder = tmp_path / "late"
    folder.mkdir()
    write_run(folder, peers=2, epochs=2)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("host", {"contended": True, "reasons": ["no CPU left"]})
    found = measured_runs([folder], "geo-c8", "ConvNextLarge", 32768)
    html = build(advice_on(), found, tmp_path / "late.html", DAY).read_text()
    assert "The machine was too busy during geo-c8-20231114-aaaa (" in html[: html.index("<section>")]
    assert "TOO BUSY" in section(html, "Measured on this machine")


def test_two_runs_of_one_experiment_are_named_by_their_ids(tmp_path: Path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write_run(folder, peers=2, epochs=2)
        with RunStore.open_writer(folder / "run.db") as store:
            store.set_meta("run_id", folder.name)
    found = measured_runs(folders, "geo-c8", "ConvNextLarge", 32768)
    rows = rows_of(advice_on(), found.runs)
    assert [row["name"] for row in rows if row["origin"] == "emulated"] == ["one", "two"]
    assert len({row["name"] for row in rows}) == len(rows)
