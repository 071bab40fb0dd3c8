"""What more peers would give stands in a run's summary and report, in the study report and in comparisons, in the same words."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import write_run

from analysis.compare.paper import printed_runs
from analysis.compare.published_runs import compared_run
from analysis.compare.run_figures import StudyRun, study_run
from analysis.replay import ReadRun, read_folder
from analysis.report import content
from analysis.report.study.build import page_html
from analysis.report.study.comparison import Compared
from cloud.prices.book import load
from metrics.more_peers import by_rule, of_run, words
from metrics.summary import summarise
from orchestrator.cli.commands.compare import comparison_document, comparison_text
from orchestrator.cli.render.output import Format
from orchestrator.cli.render.summary import summary_lines


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> ReadRun:
    folder: Path = tmp_path_factory.mktemp("run")
    write_run(folder, peers=4, epochs=3)
    return read_folder(folder)


def test_a_runs_summary_and_report_have_the_line(read: ReadRun):
    found = of_run(read.run)
    assert found is not None
    assert found.peers == 4
    summary = summarise(read.run)
    assert summary["granularity_of_means"]["value"] == found.granularity
    assert summary["more_peers"] == found.to_json()
    assert any(
        line.split(maxsplit=2)[:2] == ["more", "peers"] and words(found) in line
        for line in summary_lines(summary, None)
    )
    assert words(found) in content.more_peers_note(summary)
    assert content.more_peers_note({**summary, "more_peers": None}) == ""


def test_a_comparison_has_a_line_for_each_run(read: ReadRun):
    found = of_run(read.run)
    assert found is not None
    compared = Compared([compared_run(read, {})])
    assert (
        f"  {read.row.run_id}: {words(found)}" in comparison_text(None, compared, Format.table).splitlines()
    )
    [row] = comparison_document(None, compared)["rows"]
    assert row["more_peers"] == found.to_json()


def section(runs: list[StudyRun]) -> str:
    html = page_html(runs, [], False, [])
    return (
        html.split("<h2>More peers</h2>")[1].partition("</section>")[0]
        if "<h2>More peers</h2>" in html
        else ""
    )


def test_the_study_report_has_a_row_for_each_run(read: ReadRun):
    run = study_run(read.row, read.run)
    assert run.more_peers is not None
    assert run.more_peers.factor is not None
    shown = section([run])
    assert f"<td>{run.more_peers.factor:.2f} times</td>" in shown
    assert f"<td>{run.more_peers.stops_at}</td>" in shown
    assert "(g + 1) / (g / 2 + 1) times the samples/s" in shown


def test_printed_runs_are_by_the_rule():
    runs = {run.name: run for run in printed_runs(load("study-2023-04"))}
    one = runs["CV B-8"]
    calc_s, comm_s = one.value("calc_s"), one.value("comm_s")
    assert calc_s
    assert comm_s
    assert one.more_peers == by_rule(calc_s / comm_s, 8)
    assert runs["CV A-1"].more_peers is None
    assert section([runs["CV A-1"]]) == ""
