"""Every output reports that a run's machine was too busy, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import write_run

from analysis.audit.audit import audit
from analysis.audit.evidence import Evidence
from analysis.report.content import cards
from analysis.report.study.build import _first_line, load
from cloud.prices.book import load as load_book
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise
from orchestrator.cli.render.summary import summary_lines
from orchestrator.controller.view import snapshot_of

HOST = {
    "late_worst_s": 0.9,
    "late_over_10ms_share": 0.01,
    "basis": "measured epochs, 120 s",
    "contended": True,
    "reasons": ["a packet was 0.90 s late"],
}
SAID = "a packet was 0.90 s late (measured epochs, 120 s)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "geo-c8-20231114-aaaa"
    write_run(folder)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("host", HOST)
    return folder


def test_every_output_reports_the_busy_host(folder: Path) -> None:
    with RunStore.open_reader(folder / "run.db") as store:
        summary = summarise(store)
        assert (summary["host_contended"], summary["host"]) == (True, HOST)
        assert any(SAID in warning for warning in summary["warnings"])
        assert any(SAID in line for line in summary_lines(summary, None))
        assert any(SAID in card.more for card in cards(summary))
        assert any(SAID in warning for warning in snapshot_of(store, 0.0, False)["warnings"])
        (finding,) = [f for f in audit([Evidence.of(store)]) if f.check == "host"]
        assert (finding.severity, SAID in finding.sentence) == ("doubt", True)


def test_study_page_reports_the_busy_host_first(folder: Path) -> None:
    runs, problems = load([folder], load_book("study-2023-04"))
    assert problems == ()
    assert runs[0].too_busy == SAID
    assert f"The machine was too busy during {runs[0].name} ({SAID})" in _first_line(runs)


def test_calm_host_shows_its_worst_values(folder: Path) -> None:
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("host", {**HOST, "late_worst_s": 0.02, "contended": False, "reasons": []})
    with RunStore.open_reader(folder / "run.db") as store:
        summary = summarise(RunNumbers.of(store))
    assert any(
        "host was not too busy: at worst a packet was 0.02 s late" in card.more for card in cards(summary)
    )
    assert not any("too busy" in warning for warning in summary["warnings"])
