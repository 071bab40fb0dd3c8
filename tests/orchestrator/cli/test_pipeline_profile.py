"""`orch pipeline profile` refuses what cannot be, in a sentence, before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.app import run
from orchestrator.cli.commands.pipeline.out_folder import check_writable


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--samples", "0"], "at least one sample must be measured"),
        (["--splits", "x"], "--splits x: write whole numbers from 0"),
        (["--streams", "0"], "--streams 0: write whole numbers from 1"),
        (["--workers", ","], "--workers ',': name at least one"),
        (["--kind", "coroutine"], "choose thread or process"),
        (["--cache", "none,tape"], "--cache tape: choose from none, disk, memory"),
        (["--to", "here"], "write a bucket and a prefix"),
        (["--link", "fast"], "write Mb/s of a stream"),
        (["--set", "data.streams=2"], "power is a pipeline, not an experiment"),
    ],
)
def test_bad_options(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "profile", "power", *arguments]) == 2
    found = capsys.readouterr()
    assert says in " ".join(found.err.split())
    assert found.out == ""
    assert "Traceback" not in found.err


@pytest.mark.parametrize("out", ["file", "file/deeper", "/proc/nowhere"])
@pytest.mark.usefixtures("own_home")
def test_an_unwritable_folder_is_refused_before_anything_starts(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert run(["pipeline", "profile", "imagenet", "--out", out]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"--out: {tmp_path / out} cannot be written (" in err
    assert "choose another folder" in err
    assert "making" not in err


def test_a_check_of_a_folder_leaves_nothing(tmp_path: Path):
    kept = tmp_path / "kept"
    kept.mkdir()
    check_writable(kept / "a" / "b")
    check_writable(kept)
    assert list(tmp_path.rglob("*")) == [kept]
