"""A run that ends once its held-out loss is low enough: evaluated during training, ended by the signed orders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import Running, orch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_run_ends_normally_once_its_loss_is_low_enough(clean_home: Path):
    goal = "train.until.metric={name: loss, at_most: 2.2}"  # ten classes at random: 2.30
    run = Running(clean_home, "local-2", "--set", "data.evaluate_every_epochs=1", "--set", goal)
    try:
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        assert (summary["status"], summary["ended_by"]) == ("done", "metric")
        assert summary["dropped_rounds"] == 0, summary["warnings"]
        epochs = summary["epochs"]["warmup"] + summary["epochs"]["measured"]
        assert 2 <= epochs < 30
        peers = {one["epoch"]: one["peers"] for one in summary["evaluations"]}
        assert peers.pop(epochs) == 2  # both evaluate at the end
        assert peers
        assert set(peers.values()) == {1}  # one of them, in turn, before
        target = summary["target_reached"]
        assert target["reached"]
        assert target["value"] <= 2.2
        assert target["epoch"] < epochs
        assert target["time_s"] > 0
        assert 0 < target["usd"] < summary["cost"]["total_usd"]
        hashes = [
            json.loads(path.read_text())["parameters_sha"] for path in run.folder.glob("vms/*/status.json")
        ]
        assert len(hashes) == 2
        assert len(set(hashes)) == 1  # none of them went on alone
        told = orch("why", run.run_id).stdout
        assert f"the goal metric is reached (train.until): epoch {epochs} is the last one" in told
        page = Path(orch("report", "latest").stdout.strip()).read_text()
        assert "The target, loss of at most 2.2, was reached after epoch" in page
    finally:
        run.close()
