"""Four real peers: one is killed during averaging, one is stopped for longer than an epoch; the others continue together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

EPOCHS = 7
TIMEOUT_S = 20.0
STOPPED_S = 5.0


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[dict[str, PeerProcess]]:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
    started: dict[str, PeerProcess] = {}
    with serve_folder(tmp_path / "shards") as endpoint:
        try:
            for slot in "abcd":
                known = (started["a"].wait_for(lambda s: s.get("maddr"))["maddr"],) if started else ()
                config = config_of(
                    slot, endpoint, shards, initial_peers=known, expected_peers=4, max_epochs=EPOCHS,
                    target_batch_size=4 * 96, averaging_timeout_s=TIMEOUT_S, next_chunk_timeout_s=5.0,
                )  # fmt: skip
                started[slot] = PeerProcess(tmp_path / slot, config)
            for peer in started.values():
                peer.wait_for(lambda s: s["epoch"] >= 1)
            yield started
        finally:
            for peer in started.values():
                peer.kill()


def rounds_begun(peer: PeerProcess) -> int:
    return (peer.folder / "peer.log").read_text().count("Beginning optimizer step")


def parameters(peer: PeerProcess) -> np.ndarray:
    return np.frombuffer((peer.folder / "parameters.f32").read_bytes(), dtype="<f4")


def test_survivors_of_a_kill_and_a_standstill_end_together(peers: dict[str, PeerProcess]) -> None:
    killed = peers.pop("d")
    begun = rounds_begun(killed)
    while rounds_begun(killed) == begun:
        time.sleep(0.01)
    time.sleep(0.05)
    killed.kill()
    at = max(peer.status()["epoch"] for peer in peers.values())
    stopped = peers["c"]
    stopped.wait_for(lambda s: s["epoch"] >= at + 1)
    os.killpg(stopped.process.pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.killpg(stopped.process.pid, signal.SIGCONT)
    for peer in peers.values():
        status = peer.wait_for(lambda s: s["phase"] == "done")
        assert status["epoch"] == EPOCHS
        assert not [text for text in status["warnings"] if "given up" in text], status
        steps = pd.read_csv(peer.folder / "steps.csv")
        late_s = steps["optimizer_sync_s"].max()
        print(f"{peer.config.slot}: the longest round {late_s:.1f} s; {status['warnings']}")
        assert late_s < TIMEOUT_S  # no peer waited longer for the dead or stopped one
    one, other = (peers[slot].status()["parameters_sha"] for slot in "ab")
    assert one == other  # bit by bit
    assert np.allclose(parameters(stopped), parameters(peers["a"]), atol=2e-3)  # its state came in float16
