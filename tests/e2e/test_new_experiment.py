"""A new experiment as `orch init` writes it, unchanged but for its length, from the trial to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import Running, orch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_init_try_launch(clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = orch("init", "mine", "--task", "python", "-o", "json")
    assert made.returncode == 0, made.stderr
    tried = orch("try", "mine.yaml", "-o", "json")
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout)["task"] == "task:build"
    run = Running(clean_home, str(folder / "mine.yaml"), "--set", "measure.epochs=2")
    try:
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        assert (summary["status"], summary["epochs"]["measured"]) == ("done", 2)
        assert summary["model"]["parameters"] == json.loads(tried.stdout)["parameters"]
        assert summary["accuracy"] is not None
    finally:
        run.close()
