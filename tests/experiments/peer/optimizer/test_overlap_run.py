"""Real peers that average behind their calculation: one is killed in a round, one joins; all that live end equal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

EPOCHS = 12
EPOCH = re.compile(
    r"epoch (\d+): group of (\d+), calc ([\d.]+) s, comm ([\d.]+) s, of which hidden ([\d.]+) s"
)
HELD_OUT = re.compile(r"held out: accuracy ([\d.]+), loss ([\d.]+)")


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
    started: dict[str, PeerProcess] = {}
    with serve_folder(tmp_path / "shards") as endpoint:

        def one(slot: str) -> PeerProcess:
            known = (started["a"].wait_for(lambda s: s.get("maddr"))["maddr"],) if started else ()
            config = config_of(
                slot, endpoint, shards, initial_peers=known, expected_peers=3, max_epochs=EPOCHS,
                target_batch_size=3 * 96, averaging_timeout_s=20.0, overlap="delayed",
            )  # fmt: skip
            started[slot] = PeerProcess(tmp_path / slot, config)
            return started[slot]

        try:
            yield one
        finally:
            for peer in started.values():
                peer.kill()


def log_of(peer: PeerProcess) -> str:
    return (peer.folder / "peer.log").read_text()


def parameters(peer: PeerProcess) -> np.ndarray:
    return np.frombuffer((peer.folder / "parameters.f32").read_bytes(), dtype="<f4")


def test_peers_with_overlapped_rounds_stay_one_swarm(start) -> None:
    a, b, killed = (start(slot) for slot in "abc")
    for peer in (a, b, killed):
        peer.wait_for(lambda s: s["epoch"] >= 2)
    begun = log_of(killed).count("Beginning optimizer step")
    while log_of(killed).count("Beginning optimizer step") == begun:
        time.sleep(0.01)
    time.sleep(0.05)
    killed.kill()
    at = a.status()["epoch"]
    joins = start("d")
    for peer in (a, b, joins):
        status = peer.wait_for(lambda s: s["phase"] == "done")
        assert status["epoch"] == EPOCHS
        assert not [text for text in status["warnings"] if "given up" in text], status
    assert a.status()["parameters_sha"] == b.status()["parameters_sha"]  # bit by bit
    assert np.allclose(parameters(joins), parameters(a), atol=2e-3)  # its state came in float16
    rounds = [tuple(map(float, found)) for found in EPOCH.findall(log_of(a))]
    print(rounds)
    assert [int(epoch) for epoch, *_ in rounds] == list(range(1, EPOCHS + 1))
    whole = [row for row in rounds if row[1] == 3.0]
    assert min(hidden for _, _, _, _, hidden in whole[:at]) > 0.0
    assert sum(row[4] for row in whole) > 0.3 * sum(row[3] for row in whole)
    assert rounds[-1][1] == 3.0  # with the one that joined
    steps = pd.read_csv(a.folder / "steps.csv")
    phases = [name for name in steps if name.endswith("_s") and name not in ("began_s", "wall_s")]
    assert np.allclose(steps[phases].sum(axis=1), steps["wall_s"], atol=1e-4)
    found = HELD_OUT.search(log_of(a))
    assert found is not None
    assert float(found[2]) < 2.0  # ln 10 = 2.30 is what guessing has
