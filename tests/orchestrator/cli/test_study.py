"""`orch study report`: output and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import write_run

from orchestrator.cli.app import run

pytestmark = pytest.mark.slow


def test_a_run_becomes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "one").mkdir()
    write_run(tmp_path / "one")
    page = tmp_path / "study.html"
    assert run(["study", "report", str(tmp_path / "one"), "-o", str(page)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{page}\n"
    assert "drawing 1 run" in shown.err
    assert page.read_text().startswith("<!doctype html>")
    assert (tmp_path / "study_files" / "throughput.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{tmp}"], "contains no run"),
        (["no-such-run"], "orch ls"),
        (["{tmp}", "-o", "{tmp}"], "not a file in an existing folder"),
        (["{tmp}", "-o", "{tmp}/no/such/report.html"], "not a file in an existing folder"),
        (["{tmp}", "--prices", "no-such-book"], "no such price book"),
    ],
)
def test_invalid_report_command_gives_one_sentence_and_exit_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    default = [] if "-o" in arguments else ["-o", str(tmp_path / "report.html")]
    words = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    assert run(["study", "report", *words, *default]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []
