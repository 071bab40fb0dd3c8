"""All peers of a run are preempted at once: it goes on from its checkpoint, keeps the model of its peers, and another run
begins with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, orch, wait_for

from cloud.local import LocalCloud
from cloud.vm_report import read_status
from experiments.checkpoints.manifest import Manifest
from experiments.peer.training.parameter_digest import parameters_sha
from metrics.records import SWARM_LOST
from metrics.store.database import RunStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EVERY, LAST = 2, 8


def statuses(run: Running, generation: int) -> dict[str, dict[str, Any]]:
    """Statuses of the peers of a generation, by slot."""
    found = (run.folder / "vms").glob(f"*-{generation}/status.json")
    return {f.parent.name: read_status(f) for f in found if not f.parent.name.startswith("monitor")}


def test_all_peers_lost_at_once(clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = orch("init", "mine", "--task", "python", "-o", "json")
    assert made.returncode == 0, made.stderr
    run = Running(
        clean_home, str(tmp_path / "mine.yaml"), f"--set=measure.epochs={LAST - 1}", f"--set=checkpoint.every_epochs={EVERY}",
        "--set=swarm.matchmaking_time_s=1", "--set=data.shards=s3://digits/train-{000000..000003}.tar",
    )  # fmt: skip
    try:
        wait_for(
            "a second checkpoint",
            lambda: any(len(s["checkpoints"]["stored"]) >= 2 for s in statuses(run, 0).values()),
            90,
        )
        before = max(status["epoch"] for status in statuses(run, 0).values())
        cloud = LocalCloud(run.folder)
        for vm in statuses(run, 0):
            cloud.preempt(vm)
        lost_at = max(status["epoch"] for status in statuses(run, 0).values())
        used = {vm: status["epoch_positions"]["at"] for vm, status in statuses(run, 0).items()}
        stored = {c["name"] for s in statuses(run, 0).values() for c in s["checkpoints"]["stored"]}
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        assert summary["status"] == "done"
        ended = statuses(run, 1)
        assert len(ended) == 2
        restored = [status["checkpoints"]["restored"] for status in ended.values()]
        assert {one["name"] for one in restored} <= stored
        (epoch,) = {one["epoch"] for one in restored}
        began = {vm: at[0] for vm, s in ended.items() if (at := s["epoch_positions"]["at"])[0][0] == epoch}
        assert began, "both began with the checkpoint"
        for vm, (_, position) in began.items():
            known = [at for number, at in used[vm.removesuffix("-1") + "-0"] if number <= epoch]
            assert position in known, "it does not go on in the data where the lost work ended"
        assert before - EVERY <= epoch <= lost_at
        assert lost_at - epoch <= EVERY
        assert {status["epoch"] for status in ended.values()} == {LAST}
        (sha,) = {status["parameters_sha"] for status in ended.values()}
        assert {one["epoch"] for one in summary["checkpoints"]["restored"]} == {epoch}
        assert summary["checkpoints"]["newest"]["epoch"] == LAST
        assert summary["lost_work"]["epochs"] <= EVERY
        assert summary["epochs"]["measured"] <= LAST - 1, "no epoch counts twice"
        with RunStore.open_reader(run.folder / "run.db") as store:
            rows = store.records("epochs")
            (lost,) = [event.cause for event in store.records("events") if event.kind == SWARM_LOST]
            assert "training goes on at epoch" in lost
            assert store.meta("warnings") == []
        first = min(row.epoch for row in rows if row.vm in ended)
        assert first == epoch + 1, "no epoch is trained again that the checkpoint has"
        (kept,) = (run.folder / "checkpoints").iterdir()
        manifest = Manifest.from_json((kept / "manifest.json").read_text(), str(kept))
        assert (manifest.epoch, manifest.name, manifest.run_id) == (LAST, kept.name, run.run_id)
        assert sha_of(kept / "model") == sha
        pulled = orch("pull", "latest", "-o", "m")
        assert (pulled.returncode, pulled.stdout) == (0, "m\n"), pulled.stderr
        assert sha_of(tmp_path / "m") == sha
        evaluated = orch("evaluate", "m", "-o", "json", timeout_s=120)
        assert evaluated.returncode == 0, evaluated.stderr
        found = json.loads(evaluated.stdout)
        assert found["figures"] == found["reported"] == summary["evaluation"]
    finally:
        run.close()
    goes_on_from(run, sha, kept.name)


def goes_on_from(before: Running, sha: str, name: str) -> None:
    """A new run begins with the last checkpoint of a run that has ended, whose embedded store is gone."""
    more = orch(
        "launch", "mine.yaml", "--from", before.run_id, f"--set=measure.epochs={LAST + 1}", "--run-id", "more", "--yes",
        "--set=swarm.matchmaking_time_s=1", "--set=data.shards=s3://digits/train-{000000..000003}.tar", "-o", "json",
        timeout_s=150,
    )  # fmt: skip
    assert more.returncode == 0, more.stderr
    summary = json.loads(more.stdout)
    prefix = f"s3://digits/checkpoints-from/{before.run_id}"
    assert [(one["prefix"], one["name"]) for one in summary["checkpoints"]["restored"]] == [
        (prefix, name)
    ] * 2
    assert (summary["start_from"]["prefix"], summary["start_from"]["name"]) == (prefix, name)
    assert summary["epochs"]["warmup"] + summary["epochs"]["measured"] == 2
    folder = before.folder.with_name("more")
    with RunStore.open_reader(folder / "run.db") as store:
        assert {row.epoch for row in store.records("epochs")} == {LAST + 1, LAST + 2}
        positions = dict(store.meta("epoch_positions"))
    with RunStore.open_reader(before.folder / "run.db") as store:
        ended_at = {slot: dict(known["at"])[LAST] for slot, known in store.meta("epoch_positions").items()}
    assert {slot: dict(known["at"])[LAST] for slot, known in positions.items()} == ended_at, (
        "the data goes on"
    )
    assert all(position["pass"] or position["done"] or position["samples"] for position in ended_at.values())
    ended = [read_status(file) for file in (folder / "vms").glob("*-0/status.json")]
    assert sha not in {status.get("parameters_sha") for status in ended}, "it was trained further"


def sha_of(folder: Path) -> str:
    """Digest of a saved model's parameters, in the order in which the peers have them."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return parameters_sha(tensors[name] for name in ORDER)


ORDER = ("0.weight", "0.bias", "2.weight", "2.bias")
