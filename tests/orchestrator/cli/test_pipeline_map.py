"""`orch pipeline map`: a real pipeline on samples from a real store; perf prints recorded text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import profilers
import pytest

from orchestrator.cli.app import run
from orchestrator.pipeline import map_programs


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What PATH names first."""
    folder = profilers.install(tmp_path / "bin", profilers.RECORDING)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in (("_PARANOID", "2"), ("_MOST_SAMPLES_HZ", "100000")):
        (folder / name).write_text(value)
        monkeypatch.setattr(map_programs, name, folder / name)
    return folder


@pytest.mark.processes
@pytest.mark.usefixtures("bin_folder")
def test_a_map_is_printed_and_saved(own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = [
        "--samples",
        "8",
        "--seconds",
        "0.1",
        "--lotus",
        "--events",
        "cycles",
        "--out",
        str(tmp_path / "m"),
    ]
    assert run(["pipeline", "map", "imagenet", *options, "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "m" / "map.json").read_text())
    assert [row["op"] for row in shown["ops"]] == [
        "decode",
        "crop",
        "flip",
        "to_tensor",
        "normalize",
        "label",
    ]
    assert shown["ops"][0]["events"] == {"cycles": None}
    first = shown["functions"][0]
    assert (first["op"], first["library"]) == ("decode", "libjpeg.so.62.4.0")
    assert shown["samples"] == 8
    assert [row["op"] for row in shown["lotus"]["ops"]][:2] == ["decode", "crop"]

    assert (
        run(["pipeline", "map", "imagenet", "--samples", "8", "--seconds", "0.1", "--events", "cycles"]) == 0
    )
    text, err = capsys.readouterr()
    assert "ImagingFlipLeftRight" in text
    assert "cycles: unknown (perf: not supported on this machine" in text
    [saved] = (own_home / "maps").glob("imagenet-*/map.json")
    assert f"saved as {saved}" in err
    assert list(own_home.glob("**/pipeline-store-*")) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--exact", "--lotus"], "leave out --lotus and --events"),
        (["--exact", "--events", "cycles"], "leave out --lotus and --events"),
        (["--check", "old.json"], "add --exact"),
        (["--exact", "--check", "missing.json"], "missing.json cannot be read (No such file or directory)"),
        (["--exact", "--check", "text.json"], "text.json is not JSON"),
        (["--exact", "--check", "other.json"], "other.json is not a map"),
        (["--frequency", "0"], "--frequency: 0 samples/s are out of range"),
        (["--set", "seed=1"], "imagenet is a pipeline, not an experiment"),
    ],
)
@pytest.mark.usefixtures("own_home", "bin_folder")
def test_wrong_options_are_refused(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    Path("text.json").write_text("no")
    Path("other.json").write_text("[1]")
    assert run(["pipeline", "map", "imagenet", *options]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("options", "missing"), [([], "perf"), (["--exact"], "valgrind")])
@pytest.mark.usefixtures("own_home")
def test_a_missing_profiler_is_named_before_anything_starts(
    options: list[str],
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["pipeline", "map", "imagenet", *options]) == 1
    err = capsys.readouterr().err
    assert f"{missing} is not installed; install it" in err
    assert "making" not in err


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("file", "is not a folder; name another one"),
        ("file/deeper", "cannot be written (Not a directory); choose another folder"),
        ("/proc/nowhere", "cannot be written (No such file or directory); choose another folder"),
    ],
)
@pytest.mark.usefixtures("own_home", "bin_folder")
def test_an_unwritable_folder_is_refused_before_anything_starts(
    out: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert run(["pipeline", "map", "imagenet", "--out", out]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"--out: {tmp_path / out} {words}" in err
    assert "making" not in err
