"""A new experiment as `orch init` writes it, from the trial to the report.

One VM trains with two processes, and the run ends once its held-out loss is low enough: evaluated during training, ended by
the signed orders.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, orch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_EPOCHS = 40
_CHANGES = (
    f"measure.epochs={_EPOCHS}", "peers.eu.resources.accelerators=CPU:2", "data.evaluate_every_epochs=1",
    "train.until.metric={name: loss, at_most: 2.2}",  # ten classes at random: 2.30
)  # fmt: skip


def test_init_try_launch(clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = orch("init", "mine", "--task", "python", "-o", "json")
    assert made.returncode == 0, made.stderr
    tried = orch("try", "mine.yaml", "-o", "json")
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout)["task"] == "task:build"
    changes = [word for change in _CHANGES for word in ("--set", change)]
    run = Running(clean_home, str(folder / "mine.yaml"), *changes)
    try:
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        assert summary["model"]["parameters"] == json.loads(tried.stdout)["parameters"]
        assert summary["accuracy"] is not None
        check_ranks(run.folder)
        check_goal(run, summary)
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


def check_goal(run: Running, summary: dict[str, Any]) -> None:
    """The run ended normally, before its last epoch, once an evaluation during training had reached the goal."""
    assert (summary["status"], summary["ended_by"]) == ("done", "metric")
    assert summary["dropped_rounds"] == 0, summary["warnings"]
    epochs = summary["epochs"]["warmup"] + summary["epochs"]["measured"]
    assert 2 <= epochs < _EPOCHS
    peers = {one["epoch"]: one["peers"] for one in summary["evaluations"]}
    assert peers.pop(epochs) == 2  # both evaluate at the end
    assert peers
    assert set(peers.values()) == {1}  # one of them, in turn, before
    target = summary["target_reached"]
    assert target["reached"]
    assert target["value"] <= 2.2
    assert target["epoch"] < epochs
    assert target["time_s"] > 0
    told = orch("why", run.run_id).stdout
    assert f"the goal metric is reached (train.until): epoch {epochs} is the last one" in told
    page = Path(orch("report", "latest").stdout.strip()).read_text()
    assert "The target, loss of at most 2.2, was reached after epoch" in page
