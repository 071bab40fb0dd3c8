"""Averaging timeouts of a run's peers, from the expected communication time."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.parse.load import find, load
from experiments.peer.config import PeerConfig
from metrics.store.database import RunStore
from orchestrator.core.events import RequestVm
from orchestrator.core.journal import replay
from orchestrator.launch.peer_request import RunRequests
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare


@pytest.mark.parametrize(
    ("name", "least_s", "most_s"), [("geo-a2", 40.0, 90.0), ("geo-c8-nlp", 150.0, 240.0)]
)
def test_no_emulated_round_has_a_timeout_of_300_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, least_s: float, most_s: float
) -> None:
    monkeypatch.setattr("orchestrator.launch.keys.generate_identity", lambda: (b"identity", "id"))
    monkeypatch.setattr("orchestrator.launch.keys.generate_record_key", lambda: (b"key", "ssh-rsa AAAA"))
    spec = load(name)
    assert spec.swarm.averaging_timeout_s == 300.0
    folder = prepare(approved_plan(spec, "local", {}, cores=2), find(name), "geo-1", tmp_path, now_s=1.0)
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")
    with RunStore.open_reader(folder / "run.db") as store:
        comm_s = store.meta("emulation")["comm_s"]
        slot = replay(store.records("events")).spec.slots[0]
        request = RunRequests(folder, store).peer(
            RequestVm(f"geo-1-{slot.name}-0", slot.name, 0, 0, ()), slot.places[0]
        )
    limit_s = PeerConfig(**request.config).averaging_timeout_s
    assert least_s < limit_s < most_s
    assert limit_s >= 4.0 * comm_s
