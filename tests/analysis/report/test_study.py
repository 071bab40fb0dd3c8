"""The study report: one page without network requests, three files per figure, CSV equal to the rows."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from made_up_run import write_run

from analysis.compare.paper import references
from analysis.report.files import csv_text
from analysis.report.study.build import build, load
from analysis.report.study.sections import sections
from cloud.prices.book import load as load_book
from metrics.store.database import RunStore

pytestmark = pytest.mark.slow

BOOK = load_book("study-2023-04")


def own_runs(folder: Path) -> list[Path]:
    """Three emulated runs: 4 and 8 VMs, and one without a finished epoch."""
    for name, peers in (("geo-c4-x", 4), ("geo-c8-x", 8)):
        (folder / name).mkdir()
        write_run(folder / name, peers=peers)
        with RunStore.open_writer(folder / name / "run.db") as store:
            store.set_meta("run_id", name)
            store.set_meta("experiment", {"name": name.removesuffix("-x")})
    (folder / "failed-x").mkdir()
    with RunStore.open_writer(folder / "failed-x" / "run.db") as store:
        store.set_meta("run_id", "failed-x")
        store.set_meta("status", "failed")
        store.set_meta("emulated", True)
        store.set_meta("scales", {"bytes": 100, "time": 1, "samples": 8})
        store.set_meta("experiment", {"name": "failed"})
    return [folder / name for name in ("geo-c4-x", "geo-c8-x", "failed-x")]


@pytest.fixture(scope="module")
def own_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    runs, problems = load(own_runs(folder), BOOK)
    assert problems == ()
    return build(runs, folder / "report.html", BOOK)


@pytest.fixture(scope="module")
def printed_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build([], tmp_path_factory.mktemp("printed") / "paper.html", BOOK, paper=True)


def figures_of(page: Path) -> dict[str, list[str]]:
    """Figure's name: the kinds of its files."""
    found: dict[str, list[str]] = {}
    for path in sorted(page.with_name(f"{page.stem}_files").iterdir()):
        if path.name != "held-out.csv":  # a table without a figure
            found.setdefault(path.stem, []).append(path.suffix)
    return found


@pytest.mark.parametrize("which", ["own_page", "printed_page"])
def test_every_figure_has_its_three_files_a_label_and_a_caption(which: str, request: pytest.FixtureRequest):
    page: Path = request.getfixturevalue(which)
    html = page.read_text()
    found = figures_of(page)
    assert len(found) >= 7
    assert set(map(tuple, found.values())) == {(".csv", ".png", ".svg")}
    assert (
        html.count("<figure>")
        == html.count("<figcaption>")
        == html.count('<svg role="img" aria-label="')
        == len(found)
    )
    for name in found:
        for kind in ("csv", "png", "svg"):
            file = f"{page.stem}_files/{name}.{kind}"
            assert f'href="{file}"' in html
            assert (page.parent / file).stat().st_size > 50
    assert html.count("<table>") == html.count("<caption>")


@pytest.mark.parametrize("which", ["own_page", "printed_page"])
def test_study_page_makes_no_network_requests(which: str, request: pytest.FixtureRequest):
    html = request.getfixturevalue(which).read_text()
    fetched = re.findall(r'(?:src|href)="(?!#)([^"]*)"|url\((?!#)([^)]*)\)|@import', html)
    assert fetched
    assert all("://" not in a + b for a, b in fetched)
    assert "<script" not in html
    assert "<img" not in html


@pytest.mark.parametrize("which", ["own_page", "printed_page"])
def test_headings_are_in_order_and_ids_are_unique(which: str, request: pytest.FixtureRequest):
    html = request.getfixturevalue(which).read_text()
    levels = re.findall(r"<h(\d)", html)
    assert levels[0] == "1"
    assert set(levels[1:]) == {"2"}
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert html.index('href="#main"') < html.index("<h1")
    assert '<main id="main"' in html


def test_emulation_is_stated_first_and_with_each_figure(own_page: Path):
    html = own_page.read_text()
    first = html[html.index("<header>") : html.index("<h1>")]
    assert "Emulated: failed, geo-c4, geo-c8 (scales bytes 1/100, samples 1/8, time 1/1" in first
    body = html[html.index("<main") :].split("<section>")[1:]
    drawn = [part for part in body if "<figure>" in part]
    assert all("Emulated: " in part[part.index("</figure>") :] for part in drawn)


def test_text_of_a_figure_is_after_it_and_a_narrow_screen_has_a_cue(own_page: Path):
    body = own_page.read_text().split("<section>")[1:]
    for part in (part for part in body if "<figure>" in part):
        assert re.match(r'<h2>[^<]+</h2><figure><p class="cue"[^>]*>Scroll the figure sideways', part)
        assert len(re.sub("<[^>]*>", "", part[part.index("</figure>") :].partition("</p>")[0])) < 420


def test_page_explains_its_words_once(own_page: Path, printed_page: Path):
    own, printed = (re.findall(r"<dt>([^<]*)</dt>", page.read_text()) for page in (own_page, printed_page))
    assert own == ["C", "Granularity", "One clock", "Lines, arrows", "Markers"]
    assert printed[:6] == ["A", "B", "C", "C-8", "CV", "NLP"]
    assert "The paper's basis" in [word.replace("&#x27;", "'") for word in printed]


def test_unknown_figures_are_listed(own_page: Path):
    html = own_page.read_text()
    section = html[html.index("<h2>Not known</h2>") :]
    assert "no hivemind epoch" in section or "no epoch" in section.lower()
    assert "nan" not in re.findall(r"<td[^>]*>([^<]*)</td>", html)


def test_csv_equals_the_rows(own_page: Path):
    folder = own_page.parent
    runs, _ = load([folder / "geo-c4-x", folder / "geo-c8-x", folder / "failed-x"], BOOK)
    for part in sections(runs, False, references()):
        text = (folder / "report_files" / f"{part.name}.csv").read_text()
        assert text == csv_text(part.rows)
        read = list(csv.DictReader(text.splitlines()))
        assert len(read) == len(part.rows)
        for got, row in zip(read, part.rows, strict=True):
            assert got == {key: "" if row.get(key) is None else str(row[key]) for key in got}


def test_building_again_gives_the_same_bytes(own_page: Path, tmp_path: Path):
    folder = own_page.parent
    runs, _ = load([folder / "geo-c4-x", folder / "geo-c8-x", folder / "failed-x"], BOOK)
    again = build(runs, tmp_path / "report.html", BOOK)
    assert again.read_bytes() == own_page.read_bytes()
    for path in (folder / "report_files").iterdir():
        assert (tmp_path / "report_files" / path.name).read_bytes() == path.read_bytes()


def test_printed_page_marks_printed_and_unknown_figures(printed_page: Path):
    html = printed_page.read_text()
    assert "As printed in the paper, without logs: 28 runs." in html
    assert "Compared with the paper" not in html  # nothing of ours to compare
    assert html.count("the paper printed none") == 1  # one note for all runs
    with (printed_page.parent / "paper_files" / "granularity.csv").open() as file:
        rows = {(r["name"], r["basis"]): float(r["value"]) for r in csv.DictReader(file)}
    assert rows["NLP C-8", "study"] == 0.4
    assert rows["NLP C-8", "one clock"] == 0.6


def test_page_of_the_papers_logs(paper_traces: Path, tmp_path: Path):
    runs, problems = load([paper_traces], BOOK, paper=True)
    assert problems == ()
    page = build(runs, tmp_path / "report.html", BOOK, paper=True)
    html = page.read_text()
    assert "Replayed from imported logs, not run by orch: 20 runs." in html
    assert "As printed in the paper, without logs: 8 runs." in html

    def rows(name: str) -> dict[tuple[str, str], dict[str, str]]:
        with (tmp_path / "report_files" / f"{name}.csv").open() as file:
            return {(r["name"], r.get("basis", "")): r for r in csv.DictReader(file)}

    speed = rows("speedup")
    for name, clock, mixed in (("CV A-8", 7.1, 3.2), ("NLP A-8", 4.1, 2.75)):
        assert float(speed[name, "one clock"]["value"]) == pytest.approx(clock, abs=0.05)
        assert float(speed[name, "study"]["value"]) == pytest.approx(mixed, abs=0.05)
    cv, nlp = rows("cost-cv"), rows("cost-nlp")
    assert float(cv["CV A-1", "study"]["usd_per_1m"]) == pytest.approx(0.619, abs=0.001)
    assert float(nlp["NLP A-1", "study"]["usd_per_1m"]) == pytest.approx(0.239, abs=0.001)
    assert float(cv["CV A-1", "one clock"]["usd_per_1m"]) == pytest.approx(1.36, abs=0.01)
    assert float(nlp["NLP A-1", "one clock"]["usd_per_1m"]) == pytest.approx(0.36, abs=0.01)
    assert float(cv["CV A-8", "study"]["usd_per_1m"]) == pytest.approx(3.09, abs=0.02)
    assert float(nlp["NLP A-8", "study"]["usd_per_1m"]) == pytest.approx(4.44, abs=0.02)
    assert {cv["CV A-8", "one clock"]["origin"], cv["CV C-8", "one clock"]["origin"]} == {"log", "printed"}
