"""`orch audit` on run folders."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from audited_run import made_baseline, made_run

from orchestrator.cli.app import run


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """A baseline with mixed clocks and an otherwise clean run."""
    return [
        str(made_baseline().write(tmp_path / "baseline-1")),
        str(made_run().write(tmp_path / "hivemind-1")),
    ]


def test_table_is_grouped_by_run(folders: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["audit", *folders]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "All runs"
    assert lines.index("CV A-1 (baseline-1)") < lines.index("CV A-4 (hivemind-1)")
    assert "doubt  mixed-clock" in text
    assert "[wandb/baseline-1-gc-t4-1.csv.gz]" in text.replace("\n", " ")
    assert lines[-1] == "2 runs: 2 errors, 1 doubt, 0 notes"
    assert max(map(len, lines)) <= 120


def test_json_has_findings_and_problems(folders: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["audit", *folders, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema_version", "findings", "problems"}
    assert document["schema_version"] == 1
    assert document["problems"] == []
    assert {tuple(f) for f in document["findings"]} == {
        ("run_id", "label", "check", "severity", "sentence", "figure", "value", "expected", "n", "file")
    }
    assert document["findings"][0]["run_id"] is None


def test_csv_has_one_line_per_finding(folders: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["audit", *folders, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [r["check"] for r in rows] == ["speed-up", "mixed-clock", "speed-up"]
    assert float(rows[1]["value"]) == pytest.approx(0.5)


@pytest.mark.parametrize(("which", "floor", "code"), [(1, "doubt", 0), (0, "doubt", 1), (0, "error", 0)])
def test_fail_on_sets_the_failing_severity(folders: list[str], which: int, floor: str, code: int):
    assert run(["audit", folders[which], "--fail-on", floor]) == code


def test_findings_that_differ_in_their_numbers_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = made_run(epochs=6)
    made.values["raw_target_batch_size"] *= 2
    folder = str(made.write(tmp_path / "hivemind-1"))
    assert run(["audit", folder]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert run(["audit", folder, "-o", "json"]) == 0
    alike = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["check"] == "samples"]
    assert len(alike) > 3
    assert text.count("less than the target batch size") == 2
    assert f"And {len(alike) - 2} more like this: `-o json` has all." in text
    assert f"{len(alike)} notes" in text


def test_clean_run_has_no_findings(folders: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["audit", folders[1]]) == 0
    assert "no findings" in capsys.readouterr().out


def test_unreadable_run_does_not_stop_the_others(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.db").write_bytes(b"no database at all" * 100)
    assert run(["audit", str(broken), folders[0], "-o", "json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["findings"]
    assert len(document["problems"]) == 1
    assert "broken" in document["problems"][0]
    assert "broken" in shown.err


@pytest.mark.parametrize("content", [None, b"noise"])
def test_no_readable_run_exits_with_2(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "place"
    place.mkdir()
    if content is not None:
        (place / "run.db").write_bytes(content)
    assert run(["audit", str(place)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(place) in shown.err
    assert "Traceback" not in shown.err


def test_unknown_run_exits_with_2(capsys: pytest.CaptureFixture[str]):
    assert run(["audit", "nothing-of-that-name"]) == 2
    assert "nothing-of-that-name" in capsys.readouterr().err


def test_claims_are_checked_against_the_logs(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    claims = tmp_path / "claims.csv"
    claims.write_text("run,sps\nCV A-1,80\nCV X-9,1\n")
    assert run(["audit", *folders, "--claims", str(claims), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    [found] = [f for f in document["findings"] if f["check"] == "published"]
    assert (found["label"], found["severity"], found["value"]) == ("CV A-1", "error", 80.0)
    assert document["problems"] == [f"{claims}: run CV X-9 is not among the runs audited"]


@pytest.mark.parametrize("content", [None, b"run,sps\na,b\n", b"\xff\xfe\x00"])
def test_unreadable_claims_exit_with_2(
    content: bytes | None, folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    claims = tmp_path / "claims.csv"
    if content is not None:
        claims.write_bytes(content)
    assert run(["audit", *folders, "--claims", str(claims)]) == 2
    assert f"{claims}" in capsys.readouterr().err
