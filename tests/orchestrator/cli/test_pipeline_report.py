"""`orch pipeline report`: what it finds, what it leaves out, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from made_up_input import map_document, trace_document
from made_up_profile import profile
from made_up_run import write_run
from traced_run import store_sums, write_traces

from analysis.pipeline.profile_file import to_json
from orchestrator.cli.app import run


def save(home: Path, kind: str, text: str, name: str = "one") -> Path:
    """Save a document where `orch pipeline KIND` does."""
    path = home / f"{kind}s" / name / f"{kind}.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def save_all(home: Path) -> None:
    """A trace, a map and a profile of `imagenet`."""
    save(home, "trace", json.dumps(trace_document()))
    save(home, "map", json.dumps(map_document()))
    save(home, "profile", to_json(profile()))


def document(capsys, *arguments: str) -> dict:
    assert run(["pipeline", "report", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments: str) -> str:
    """The sentence on stderr of a command that ends with 2."""
    assert run(["pipeline", "report", *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert "Traceback" not in done.err
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())


def test_an_experiment_with_the_measurements_of_a_pipeline(own_home: Path, capsys):
    save_all(own_home)
    photos = ("geo-b2", "--pipeline", "imagenet", "--samples", "1281167")
    found = document(capsys, *photos)
    assert (found["kind"], found["target"], found["missing"], found["warnings"]) == (
        "experiment",
        "geo-b2",
        [],
        [],
    )
    assert [best["strategy"] for best in found["best"]] == ["0-none-s1-w1t-none", "0-none-s1-w1t-disk"]
    page = Path(found["report"])
    assert page.parent.parent == own_home / "pipeline-reports"
    for name in ("operations", "waiting", "map", "strategies", "options"):
        assert {path.suffix for path in page.parent.glob(f"{name}.*")} == {".csv", ".png", ".svg"}
    assert run(["pipeline", "plan", *photos]) == 0
    planned, shown = capsys.readouterr().out, unescape(page.read_text())
    assert all(best["text"] in planned and best["text"] in shown for best in found["best"])
    assert run(["pipeline", "report", "--help"]) == 0
    named = set(re.findall(r'"([a-z0-9_]+)"', capsys.readouterr().out))
    kinds = {"pipeline", "experiment", "run"}
    assert {*found, *found["parts"], *found["best"][0]} == named - kinds


def test_a_pipeline_alone_has_no_dollars(own_home: Path, capsys, tmp_path: Path):
    save_all(own_home)
    found = document(capsys, "imagenet", "--out", str(tmp_path / "page"))
    assert (found["kind"], found["best"]) == ("pipeline", [])
    assert found["missing"] == [
        "Dollars: a plan needs an experiment's peers and store; `orch pipeline report EXPERIMENT --pipeline imagenet` has them."
    ]
    assert found["report"] == str(tmp_path / "page" / "report.html")


def test_the_newest_of_each_and_nothing_of_another_pipeline(own_home: Path, capsys):
    save_all(own_home)
    newer = save(
        own_home, "trace", json.dumps(trace_document(measured_at="2026-11-28T04:30:00+00:00")), "two"
    )
    save(
        own_home,
        "trace",
        json.dumps(trace_document(target="power", pipeline="power", measured_at="2027")),
        "three",
    )
    save(own_home, "trace", "no JSON", "four")
    assert run(["pipeline", "report", "imagenet", "-o", "json"]) == 0
    done = capsys.readouterr()
    found = json.loads(done.out)
    assert found["parts"]["trace"] == str(newer)
    assert "left out: " in done.err
    assert "four" in done.err
    changed = save(
        own_home,
        "map",
        json.dumps(map_document(fingerprint="f" * 64, measured_at="2026-11-28T06:00:00+00:00")),
        "two",
    )
    found = document(capsys, "imagenet")
    assert found["parts"] == {"trace": None, "map": str(changed), "profile": None}
    assert len(found["warnings"]) == 2
    assert "its pipeline, 000000000000, is not that of the map, ffffffffffff" in found["warnings"][0]
    found = document(capsys, "imagenet", "--trace", str(newer.parent))
    assert found["parts"] == {
        "trace": str(newer),
        "map": None,
        "profile": str(own_home / "profiles" / "one" / "profile.json"),
    }, "what was named decides"
    said = refusal(capsys, "imagenet", "--trace", str(newer), "--map", str(changed))
    assert f"{newer}: its pipeline, 000000000000, is not that of the map, ffffffffffff" in said
    said = refusal(capsys, "power", "--map", str(changed))
    assert "it is of imagenet, not of power; name another file, or add --pipeline imagenet" in said


def test_a_run_shows_its_own_trace(own_home: Path, capsys):
    folder = own_home / "runs" / "geo-20261121-7f3a"
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("name: geo\n")
    write_run(folder, peers=2, epochs=3)
    save(own_home, "profile", to_json(profile()))
    document(capsys, folder.name, "--pipeline", "imagenet")
    store_sums(folder, write_traces(folder))
    found = document(capsys, folder.name, "--pipeline", "imagenet")
    assert (found["kind"], found["target"]) == ("run", folder.name)
    assert found["parts"]["trace"] == str(folder / "run.db")
    page = Path(found["report"])
    assert (page.parent / "input_operations.csv").is_file()
    assert (page.parent / "input_waiting.csv").is_file()
    assert any("a run keeps no fingerprint" in one for one in found["warnings"])
    assert "--set: " in refusal(capsys, folder.name, "--set", "seed=1")
    assert "has a trace of its own" in refusal(capsys, folder.name, "--trace", "/proc/none")


def test_what_has_no_dollars_is_said(own_home: Path, capsys):
    save(
        own_home,
        "profile",
        to_json(replace(profile(), pipeline="photos", target="photos", fingerprint="9" * 64)),
    )
    path = own_home / "profiles" / "one" / "profile.json"
    assert "it is of photos, not of geo-b2" in refusal(capsys, "geo-b2", "--profile", str(path))
    found = document(capsys, "geo-b2", "--profile", str(path), "--pipeline", "photos", "--set", "seed=7")
    assert [best["passes"] for best in found["best"]] == [1, 30]
    path.write_text(to_json(replace(profile(), pipeline="photos", target="geo-b2", fingerprint="9" * 64)))
    found = document(capsys, "geo-b2")
    assert found["best"] == []
    (dollars,) = [one for one in found["missing"] if one.startswith("Dollars: ")]
    assert "is of pipeline photos" in dollars
    assert "--any-profile" not in dollars


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("imagenet",), "nothing was measured of the input of imagenet; run `orch pipeline trace imagenet`"),
        (("nothing-here",), "no such pipeline, experiment or run"),
        (
            ("imagenet", "--map", "/proc/none"),
            "/proc/none: cannot be read (No such file or directory); give a map.json",
        ),
        (("imagenet", "--trace", "/dev/null"), "/dev/null: not JSON"),
        (("imagenet", "--passes", "0"), "--passes '0' is not a list of whole numbers"),
        (("imagenet", "--sps-per-peer", "nan"), "--sps-per-peer nan is not above 0"),
    ],
)
def test_what_is_refused(own_home: Path, capsys, arguments: tuple[str, ...], words: str):
    assert words in refusal(capsys, *arguments)


def test_other_files_and_other_documents(own_home: Path, capsys, tmp_path: Path):
    save_all(own_home)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "mine.tex").write_text("mine")
    said = refusal(capsys, "imagenet", "--out", str(mine))
    assert f"--out: {mine} cannot be written (it holds mine.tex, which is not of such a report)" in said
    profile_file = own_home / "profiles" / "one" / "profile.json"
    assert "not a map of a pipeline or an experiment (" in refusal(
        capsys, "imagenet", "--map", str(profile_file)
    )
    of_run = tmp_path / "trace.json"
    of_run.write_text(json.dumps(trace_document(measured_at=None)))
    assert "measured_at: Input should be a valid string" in refusal(
        capsys, "imagenet", "--trace", str(of_run)
    )


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("trace", {"traces": []}, "traces: List should have at least 1 item"),
        ("trace", {"traces": 5}, "traces: Input should be a valid list"),
        ("trace", {"link": {"rate_mbps": 5}}, "link.rtt_ms: Field required"),
        ("map", {"lotus": 1}, "lotus"),
        ("map", {"unit": "hours"}, "unit"),
        ("map", {"functions": [{"op": "decode"}]}, "functions.0.function: Field required"),
    ],
)
def test_a_damaged_document_is_left_out(own_home: Path, capsys, kind: str, changed: dict, words: str):
    save_all(own_home)
    made = trace_document(**changed) if kind == "trace" else map_document(**changed)
    path = own_home / f"{kind}s" / "one" / f"{kind}.json"
    path.write_text(json.dumps(made))
    assert run(["pipeline", "report", "imagenet", "-o", "json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["parts"][kind] is None
    assert f"left out: {path}: not a {kind}" in done.err
    assert words in done.err
    assert words in refusal(capsys, "imagenet", f"--{kind}", str(path))


def test_a_profile_with_what_is_no_number_is_left_out(own_home: Path, capsys):
    save_all(own_home)
    path = own_home / "profiles" / "one" / "profile.json"
    for word in ("NaN", "Infinity", "1e999"):
        path.write_text(to_json(profile()).replace('"value": 329.0', f'"value": {word}'))
        assert document(capsys, "imagenet")["parts"]["profile"] is None
