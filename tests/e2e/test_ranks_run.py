"""Two peers across the Atlantic, each with two accelerators: one model on all four, and the figures of the rounds."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

OWN = Path(__file__).parents[1] / "experiments" / "tasks" / "own"
_WATCHED = '''
import hashlib
import os

import my_task


class Watched(my_task.Digits):
    """Writes a digest of the weights of each step, where they have changed, into a file of this process."""

    last = ""

    def loss(self, batch):
        parts = [p.detach().numpy().tobytes() for p in self.model.parameters()]
        digest = hashlib.sha256(b"".join(parts)).hexdigest()
        if digest != self.last:
            self.last = digest
            with open(f"weights-{os.getpid()}.txt", "a") as file:
                file.write(digest + "\\n")
        return super().loss(batch)


def build(config, seed):
    return Watched(config["width"])
'''
_CHANGES = (
    "task.python=watched.py:build", "code=[my_task.py, my_helper.py]", "measure={warmup_epochs: 1, epochs: 2}",
    "peers.us.resources.accelerators=CPU:2", "peers.eu.resources.accelerators=CPU:2",
)  # fmt: skip


def test_two_peers_with_two_ranks_each_over_a_delayed_link(
    clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "user"
    shutil.copytree(OWN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "watched.py").write_text(_WATCHED)
    monkeypatch.chdir(folder)
    run = Running(clean_home, "mine.yaml", *(word for change in _CHANGES for word in ("--set", change)))
    try:
        code, summary = run.finish(200)
        assert code == 0, run.stderr.read_text()
        assert (summary["status"], summary["dropped_rounds"]) == ("done", 0), summary["warnings"]
        vms = [next((run.folder / "vms").glob(f"*-{slot}-0-0")) for slot in ("us", "eu")]
        weights = [file.read_text().split() for vm in vms for file in sorted(vm.glob("weights-*.txt"))]
        assert len(weights) == 4  # two processes on each VM
        assert all(found == weights[0] for found in weights), weights  # bit by bit, in each epoch
        assert len(weights[0]) == 3
        ends = [json.loads((vm / "status.json").read_text()) for vm in vms]
        assert [end["epoch"] for end in ends] == [3, 3]
        assert len({end["parameters_sha"] for end in ends}) == 1
        for vm in vms:
            with (vm / "steps.csv").open() as file:
                assert {int(row["samples"]) for row in csv.DictReader(file)} <= {0, 2 * 32}
        assert summary["comm_s"]["value"] > 0.1  # a round has at least one round trip of 0.1 s
        assert summary["granularity"]["value"] > 0
        assert summary["granularity_of_means"]["value"] == pytest.approx(
            summary["calc_s"]["value"] / summary["comm_s"]["value"]
        )
    finally:
        run.close()
