"""A new experiment as `orch init` writes it, but shorter and with two processes on one VM, from the trial to the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from running import Running, orch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_CHANGES = ("--set", "measure.epochs=2", "--set", "peers.eu.resources.accelerators=CPU:2")


def test_init_try_launch(clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = orch("init", "mine", "--task", "python", "-o", "json")
    assert made.returncode == 0, made.stderr
    tried = orch("try", "mine.yaml", "-o", "json")
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout)["task"] == "task:build"
    run = Running(clean_home, str(folder / "mine.yaml"), *_CHANGES)
    try:
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        assert (summary["status"], summary["epochs"]["measured"]) == ("done", 2)
        assert summary["model"]["parameters"] == json.loads(tried.stdout)["parameters"]
        assert summary["accuracy"] is not None
        check_ranks(run.folder)
    finally:
        run.close()


def check_ranks(folder: Path) -> None:
    """One peer trained with two processes, the other with one: its steps have twice the samples, and both have one model."""
    us, eu = (next((folder / "vms").glob(f"*-{slot}-0-0")) for slot in ("us", "eu"))
    batch = json.loads((us / "config.json").read_text())["batch_size"]
    for vm, ranks in ((us, 1), (eu, 2)):
        with (vm / "steps.csv").open() as file:
            assert {int(row["samples"]) for row in csv.DictReader(file)} <= {0, ranks * batch}
    assert len({json.loads((vm / "status.json").read_text())["parameters_sha"] for vm in (us, eu)}) == 1
