"""`orch pipeline profile` refuses what cannot be, in a sentence, before it starts anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import made_up_profile
import pytest

from analysis.pipeline.profile_records import Profile
from orchestrator.cli.app import run
from orchestrator.pipeline.host_watch import HostWatch
from orchestrator.pipeline.profiling import Wanted
from orchestrator.pipeline.target import Target
from orchestrator.pipeline.trace_options import check_folder


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


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("file", "is not a folder; name another one"),
        ("file/deeper", "cannot be written (Not a directory); choose another folder"),
        ("/proc/nowhere", "cannot be written (No such file or directory); choose another folder"),
    ],
)
@pytest.mark.usefixtures("own_home")
def test_an_unwritable_folder_is_refused_before_anything_starts(
    out: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert run(["pipeline", "profile", "imagenet", "--out", out]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"--out: {tmp_path / out} {words}" in err
    assert "making" not in err


def test_a_check_of_a_folder_leaves_nothing(tmp_path: Path):
    kept = tmp_path / "kept"
    kept.mkdir()
    check_folder("--out", kept / "a" / "b")
    check_folder("--out", kept)
    assert list(tmp_path.rglob("*")) == [kept]


@pytest.mark.parametrize("left", ["", "stored values are left under s3://b/p; delete them with: aws"])
@pytest.mark.usefixtures("own_home")
def test_a_profile_is_saved_with_the_host_beside_and_fails_if_values_are_left(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measure(
        target: Target,
        wanted: Wanted,
        say: Callable[[str], None],
        step: Callable[[str], None],
        tell_left: Callable[[str], None],
        host: HostWatch,
    ) -> Profile:
        with host, host.of("0-none-s1-w1t-none"):
            pass
        if left:
            tell_left(left)
        return made_up_profile.profile()

    monkeypatch.setattr("orchestrator.pipeline.profiling.profile", measure)
    code = run(["pipeline", "profile", "power", "--out", str(tmp_path / "p"), "-o", "json"])
    found = capsys.readouterr()
    assert found.out == (tmp_path / "p" / "profile.json").read_text()
    lines = (tmp_path / "p" / "host.csv").read_text().splitlines()
    assert lines[0].startswith("time_s,strategy,cpu_share,")
    assert [line.split(",")[1] for line in lines[1:]] == ["", "0-none-s1-w1t-none", ""]
    assert code == (1 if left else 0)
    assert ("the profile is complete, but" in found.err) == bool(left)
    assert left in found.err


@pytest.mark.usefixtures("own_home")
def test_bad_samples_are_told_below_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    good, other = made_up_profile.imagenet()[:2]
    found = made_up_profile.profile(good, replace(other, bad_samples=2))
    monkeypatch.setattr("orchestrator.pipeline.profiling.profile", lambda *_: found)
    assert run(["pipeline", "profile", "power", "--out", str(tmp_path / "p")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0-none-s1-w2t-none: 2 of 500 samples are bad and were left out"
    assert len([line for line in lines if "left out" in line]) == 1
