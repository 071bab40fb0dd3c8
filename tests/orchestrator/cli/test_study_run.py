"""`orch study run` from the command line, with fake runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_runs import MadeRuns

from orchestrator.cli.app import run
from orchestrator.study.definition import hold_study, list_studies

pytestmark = pytest.mark.slow


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_study_runs_from_file_to_table(study: str, own_home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["study", "run", study, "--yes"]) == 0
    shown = capsys.readouterr()
    assert "3 runs one after the other, on the emulated cloud" in shown.err
    assert "[1 of 3] geo-a2, about" in shown.err
    assert "[3 of 3] geo-c8-x: done in" in shown.err
    assert [line.split()[1] for line in shown.out.splitlines()[1:4]] == ["A-2", "B-2", "C-8"]
    (folder,) = list_studies(own_home)
    assert f"report: {folder / 'report.html'}" in shown.err
    assert [made.rsplit("-", 3)[0] for made in MadeRuns.made] == ["geo-a2", "geo-b2", "geo-c8-x"]
    assert run(["study", "run", "s", "--resume"]) == 0  # nothing is left: nothing is run
    assert len(MadeRuns.made) == 3
    capsys.readouterr()
    assert run(["study", "ls", "-o", "json"]) == 0
    listed = _json(capsys)
    assert listed["studies"] == [
        {"study": folder.name, "on": "local", "done": 3, "failed": 0, "left": 0, "of": 3}
    ]
    assert "paper-abc" in listed["shipped"]


def test_failed_run_is_reported_at_the_end_and_retried(study: str, capsys: pytest.CaptureFixture[str]):
    MadeRuns.refused = {"geo-b2"}
    assert run(["study", "run", study, "--yes", "-o", "json"]) == 1
    shown = capsys.readouterr()
    reported = json.loads(shown.out)
    assert (reported["status"], [r["status"] for r in reported["runs"]]) == (
        "failed",
        ["done", "failed", "done"],
    )
    assert "no memory for 8 peers" in reported["runs"][1]["error"]
    assert reported["comparison"]["missing"][0]["experiment"] == "geo-b2"
    assert "1 failed, 0 not run, of 3" in shown.err
    MadeRuns.refused = set()
    assert run(["study", "run", "s", "--resume", "-o", "json"]) == 0
    reported = _json(capsys)
    assert [r["attempts"] for r in reported["runs"]] == [1, 2, 1]
    assert [made.rsplit("-", 3)[0] for made in MadeRuns.made] == ["geo-a2", "geo-c8-x", "geo-b2"]


def test_resume_dry_run_shows_what_is_left(study: str, own_home: Path, capsys: pytest.CaptureFixture[str]):
    MadeRuns.refused, MadeRuns.interrupt = {"geo-a2"}, {"geo-b2"}
    assert run(["study", "run", study, "--yes"]) == 130
    (folder,) = list_studies(own_home)
    journal = (folder / "journal.jsonl").read_bytes()
    capsys.readouterr()
    left = ["study", "run", "s", "--resume", "--dry-run", "-o", "json"]
    assert run(left) == 0
    assert [r["run"] for r in _json(capsys)["runs"]] == ["geo-b2", "geo-c8-x"]
    assert run([*left, "--only", "geo-a2"]) == 0
    assert [r["run"] for r in _json(capsys)["runs"]] == ["geo-a2"]
    assert run([*left, "--only", "geo-a2", "--only", "typo"]) == 2
    # A run that may go on is looked at, whatever --only names.
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"kind": "started", "at_s": 1, "job": "geo-b2", "attempt": 2, "run_id": "b2"}\n')
    assert run(["study", "run", "s", "--resume", "--dry-run", "--only", "x"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("s can be launched\ns: 2 runs one after the other")
    assert "b2 has no end in the journal: it is inspected first" in shown.err
    (folder / "journal.jsonl").write_bytes(journal)
    MadeRuns.refused = set()
    assert run(["study", "run", "s", "--resume"]) == 1  # the failed one waits until all have run
    assert run(["study", "run", "s", "--resume"]) == 0
    assert len(MadeRuns.made) == 4
    capsys.readouterr()
    assert run(["study", "run", "s", "--resume", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{folder.name}: nothing left to run\n"
    assert len(MadeRuns.made) == 4


def test_requested_runs_decide_the_exit_code(study: str, capsys: pytest.CaptureFixture[str]):
    MadeRuns.refused, MadeRuns.interrupt = {"geo-a2"}, {"geo-b2"}
    assert run(["study", "run", study, "--yes"]) == 130
    capsys.readouterr()
    only = ["study", "run", "s", "--resume", "-o", "json", "--only"]
    assert run([*only, "geo-b2"]) == 0
    assert _json(capsys)["status"] == "failed"  # of the whole study
    assert run([*only, "geo-a2"]) == 1
    capsys.readouterr()
    MadeRuns.refused = set()
    assert run([*only, "geo-a2"]) == 0
    assert _json(capsys)["status"] == "unfinished"


def test_failed_repeat_is_reported(study: str, capsys: pytest.CaptureFixture[str]):
    MadeRuns.busy, MadeRuns.refused = {"geo-a2": 1}, {"geo-a2 2"}
    assert run(["study", "run", study, "--yes", "-o", "json"]) == 0  # it has numbers
    shown = capsys.readouterr()
    reported = json.loads(shown.out)["runs"][0]
    assert (reported["status"], reported["attempts"]) == ("done", 2)
    (line,) = [line for line in shown.err.splitlines() if line == f"{reported['error']}"]
    first = MadeRuns.made[0]
    assert line.startswith(f"geo-a2: repeat {first[:-1]}2 failed: {first[:-1]}2: no memory")
    assert line.endswith(f"its numbers are those of {first} (the host was too busy (late))")
    assert run(["study", "run", "s", "--resume", "-o", "json"]) == 0  # tried again
    reported = _json(capsys)["runs"][0]
    assert (reported["attempts"], reported["disturbed"], reported["error"]) == (3, [], "")


def test_drawing_error_does_not_fail_the_study(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestrator.cli.commands.compare.write_page", full)
    assert run(["study", "run", study, "--yes", "--only", "geo-a2", "-o", "json"]) == 0
    shown = capsys.readouterr()
    reported = json.loads(shown.out)
    assert (reported["status"], reported["report"]) == ("done", None)
    assert reported["report_error"] == "it could not be drawn (OSError: [Errno 28] No space left on device)"
    assert (
        f"no report: {reported['report_error']}; retry with `orch compare {reported['study_id']} --report"
        in shown.err
    )


def test_partial_study_does_not_hide_a_complete_one(
    study: str, own_home: Path, capsys: pytest.CaptureFixture[str]
):
    MadeRuns.interrupt = {"geo-c8-x"}
    assert run(["study", "run", study, "--yes"]) == 130
    (whole,) = list_studies(own_home)
    capsys.readouterr()
    assert run(["study", "run", study, "--yes", "--only", "geo-a2"]) == 0
    printed = capsys.readouterr().err
    assert (
        f"{whole.name} has 1 of 3 runs left: resume it with `orch study run {whole.name} --resume`" in printed
    )
    assert (
        "this study has 1 of the 3 runs of s; refer to it by its id, because the name alone selects"
        in printed
    )
    assert run(["compare", "s", "-o", "json"]) == 0
    assert _json(capsys)["study"] == whole.name
    assert run(["study", "run", "s", "--resume", "-o", "json"]) == 0
    assert _json(capsys)["study_id"] == whole.name


def test_a_contended_run_is_repeated(study: str, capsys: pytest.CaptureFixture[str]):
    MadeRuns.busy = {"geo-a2": 1, "geo-b2": 9}
    assert run(["study", "run", study, "--yes", "-o", "json"]) == 0
    shown = capsys.readouterr()
    reported = json.loads(shown.out)
    assert [r["attempts"] for r in reported["runs"]] == [2, 3, 1]
    assert [r["host_contended"] for r in reported["comparison"]["rows"]] == [False, True, False]
    assert [r["attempts"] for r in reported["comparison"]["rows"]] == [2, 3, 1]
    assert "the host was too busy (late): will be repeated" in shown.err
    assert "the host was too busy (late): not repeated, and not compared" in shown.err


def test_ctrl_c_exits_with_130_and_the_study_can_be_resumed(study: str, capsys: pytest.CaptureFixture[str]):
    MadeRuns.interrupt = {"geo-b2"}
    assert run(["study", "run", study, "--yes"]) == 130
    assert "resume with `orch study run" in capsys.readouterr().err
    assert run(["compare", "s", "-o", "json"]) == 0
    half = _json(capsys)
    assert [row["experiment"] for row in half["rows"]] == ["CV A-2"]
    assert {row["experiment"]: row["why"] for row in half["missing"]} == {
        "geo-b2": "not run yet",
        "geo-c8-x": "not run yet",
    }
    assert run(["study", "run", "s", "--resume", "-o", "json"]) == 0
    reported = _json(capsys)
    assert [r["attempts"] for r in reported["runs"]] == [1, 1, 1]
    assert reported["runs"][1]["run_id"].endswith("-2")


def test_only_and_set_options(study: str, own_home: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        run(["study", "run", study, "--yes", "--only", "geo-c*", "--set", "measure.epochs=5", "-o", "json"])
        == 0
    )
    assert [r["run"] for r in _json(capsys)["runs"]] == ["geo-c8-x"]
    (folder,) = list_studies(own_home)
    document = json.loads((folder / "study.json").read_text())["documents"]["geo-c8-x"]
    assert (document["measure"]["epochs"], document["seed"]) == (5, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["study", "run", "{file}"], 3, "add --yes"),
        (["study", "run", "nowhere"], 2, "no such study file"),
        (["study", "run", "{file}", "--resume"], 2, "no study named 's' was begun here"),
        (["study", "run", "{file}", "--only", "geo-x"], 2, "runs: geo-a2, geo-b2, geo-c8-x"),
        (
            ["study", "run", "{file}", "--only", "geo-a2", "--only", "geo-typo"],
            2,
            "--only geo-typo: matches no run",
        ),
        (
            ["study", "run", "{file}", "--resume", "--price-tolerance", "0.2"],
            2,
            "omit --price-tolerance",
        ),
        (["study", "run", "{file}", "--set", "swarm.batch_siz=1"], 2, "did you mean 'batch_size'"),
        (["study", "run", "{file}", "--resume", "--set", "seed=1"], 2, "omit --set"),
        (["study", "run", "{tmp}/bad.yaml", "--yes"], 2, "bad.csv:2: limit 'much' is not a number"),
        (["study", "run", "{tmp}/bad.yaml", "--dry-run"], 2, "bad.csv:2: limit 'much' is not a number"),
        (["study", "run", "geo-c8"], 2, "is an experiment, not a study; `orch launch geo-c8` runs it"),
        (["compare", "nothing"], 2, "there is no study of that name either"),
        (
            ["compare", "paper-abc"],
            2,
            "this shipped study has not been run here yet; run it with `orch study run paper-abc`",
        ),
    ],
)
def test_invalid_study_command_gives_one_sentence(
    study: str, own_home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
):
    folder = Path(study).parent
    (folder / "bad.csv").write_text("scope,experiments,figure,limit,around,why\neach,*,sps,much,published,\n")
    (folder / "bad.yaml").write_text("name: bad\nexperiments: [geo-a2]\ncompare: {limits: bad.csv}\n")
    assert run([word.replace("{file}", study).replace("{tmp}", str(folder)) for word in arguments]) == code
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert not (own_home / "studies").exists()


def test_study_in_progress_is_left_alone(study: str, own_home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["study", "run", study, "--yes", "--only", "geo-a2"]) == 0
    (folder,) = list_studies(own_home)
    with hold_study(folder):
        assert run(["study", "run", "s", "--resume"]) == 6
        assert run(["study", "run", study, "--yes"]) == 6
    assert "another `orch` process is running this study" in capsys.readouterr().err
    assert len(MadeRuns.made) == 1


def test_dry_run_shows_totals_and_leaves_nothing(own_home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["study", "run", "paper-abc", "--dry-run", "-o", "json"]) == 0
    plan = _json(capsys)
    assert len(plan["runs"]) == 28
    assert plan["most_vms"] == 8
    assert plan["raw_duration_s"] < 100 * 60
    assert run(["study", "run", "paper-abc", "--dry-run", "--on", "sky", "--only", "geo-c8*"]) == 0
    shown = capsys.readouterr().out
    assert "total: about" in shown
    assert shown.startswith("paper-abc cannot be launched as it is: 2 of 2 runs have obstacles\n")
    assert shown.count("every run: data.endpoint is empty") == 1
    assert not own_home.exists()


def test_rented_vms_are_confirmed_once(study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = ["--set", "data.endpoint=https://s3.example.com", "--set", "data.private=true"]
    assert (
        run(["study", "run", study, "--on", "sky", "--only", "geo-a2", "--dry-run", "-o", "json", *store])
        == 0
    )
    plan = _json(capsys)
    assert float(plan["vm_usd"]) > 0
    assert float(plan["egress_usd"]) > 0
    assert plan["contended_retries"] == 0
