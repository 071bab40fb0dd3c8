"""A peer's config: averaging, region, steps per report, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.parse.load import find, load
from metrics.store.database import RunStore
from orchestrator.core.events import RequestVm
from orchestrator.core.journal import replay
from orchestrator.launch.peer_request import RunRequests
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare


@pytest.fixture(autouse=True)
def keys_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "orchestrator.launch.keys."
    monkeypatch.setattr(f"{keys}generate_identity", lambda: (b"key", "id"))
    monkeypatch.setattr(f"{keys}generate_record_key", lambda: (b"key", "ssh-rsa AAAA"))


POSITION = {"pass": 1, "done": [0, 3], "shard": 7, "samples": 12}
BY_EPOCH = {"since": 0, "at": [[4, POSITION]]}


def configs(tmp_path: Path, name: str, changes: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """What the peers of a run are told."""
    folder = prepare(
        approved_plan(load(name, changes), "local", {}, cores=2), find(name), "geo-1", tmp_path, now_s=1.0
    )
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")  # as the shell writes them
    with RunStore.open_reader(folder / "run.db") as store:
        slots = replay(store.records("events")).spec.slots
        requests = RunRequests(folder, store, {"us-0": POSITION}.get, {"us-0": BY_EPOCH}.get)
    told = []
    for slot in slots:
        wish = RequestVm(f"geo-1-{slot.name}-0", slot.name, 0, 0, ())
        told.append(requests.peer(wish, slot.places[0]).config)
    return told


@pytest.mark.parametrize(
    ("changes", "averaging"), [([], "flat"), (["swarm.averaging=hierarchical"], "hierarchical")]
)
def test_a_peer_gets_its_averaging_region(tmp_path: Path, changes: list[str], averaging: str) -> None:
    told = configs(tmp_path, "geo-b2", changes)
    assert [config["averaging"] for config in told] == [averaging] * 2
    assert [config["averaging_region"] for config in told] == ["gcp/us-central1", "gcp/europe-west1"]


def test_a_peer_starts_where_the_last_one_of_its_slot_was(tmp_path: Path) -> None:
    told = configs(tmp_path, "geo-b2")
    assert [(config["slot"], config["data_position"]) for config in told] == [
        ("us-0", POSITION),
        ("eu-0", None),
    ]
    assert [config["epoch_positions"] for config in told] == [BY_EPOCH, None]


def test_steps_per_report_follow_the_accelerator(tmp_path: Path) -> None:
    own, t4 = configs(tmp_path, "geo-f-a-1-nlp")
    assert (own["coalesce"], t4["coalesce"]) == (37, 4)
    for config in (own, t4):
        assert config["coalesce"] * (config["forward_s"] + config["backward_s"]) == pytest.approx(1, abs=0.15)


def test_a_peer_without_accelerator_is_not_padded(tmp_path: Path) -> None:
    (alone,) = configs(tmp_path / "alone", "digits-alone")
    assert (alone["forward_s"], alone["backward_s"], alone["sync_work_s"]) == (0, 0, 0)
    assert (alone["plain"], alone["parameters"]) == (True, 4810)  # no ballast
    eight = configs(tmp_path / "eight", "digits-c8")
    assert {(round(c["forward_s"] + c["backward_s"], 9), c["plain"]) for c in eight} == {(0.9, False)}
    assert {c["parameters"] > 4810 for c in eight} == {True}


def test_a_peer_is_told_to_compile_and_waits_longer_for_those_that_do(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    host = ["emulation.accelerators=host"]
    plain, *_ = configs(tmp_path, "geo-b2", host)
    compiled, *_ = configs(tmp_path / "b", "geo-b2", [*host, "swarm.compile=true"])
    assert (plain["compile"], compiled["compile"]) == (False, True)
    assert compiled["barrier_timeout_s"] == plain["barrier_timeout_s"] + 600.0
