"""What a peer is told of how to average."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.spec.load import find, load
from metrics.store import RunStore
from orchestrator.controller.launching import prepare
from orchestrator.controller.requests import RunRequests
from orchestrator.core.events import RequestVm
from orchestrator.core.journal import replay


@pytest.mark.parametrize(
    ("changes", "averaging"), [([], "flat"), (["swarm.averaging=hierarchical"], "hierarchical")]
)
def test_a_peer_is_told_its_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: list[str], averaging: str
) -> None:
    keys = "orchestrator.controller.keys."
    monkeypatch.setattr(f"{keys}generate_identity", lambda: (b"key", "id"))
    monkeypatch.setattr(f"{keys}generate_record_key", lambda: (b"key", "ssh-rsa AAAA"))
    spec = load("geo-b2", changes)
    folder = prepare(spec, find("geo-b2"), {}, "geo-1", tmp_path, now_s=1.0, cores=2)
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")  # as the shell writes them
    with RunStore.open_reader(folder / "run.db") as store:
        slots = replay(store.records("events")).spec.slots
        requests = RunRequests(folder, store)
    told = []
    for slot in slots:
        wish = RequestVm(f"geo-1-{slot.name}-0", slot.name, 0, 0, ())
        told.append(requests.peer(wish, slot.places[0]).config)
    assert [config["averaging"] for config in told] == [averaging] * 2
    assert [config["averaging_region"] for config in told] == ["gcp/us-central1", "gcp/europe-west1"]
