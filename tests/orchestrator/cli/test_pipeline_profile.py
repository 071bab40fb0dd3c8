"""`orch pipeline profile` refuses what cannot be, in a sentence, before it starts anything."""

from __future__ import annotations

import pytest

from orchestrator.cli.app import run


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
