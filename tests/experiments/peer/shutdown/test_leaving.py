"""Real peers on loopback that get a preemption notice, vanish, or lose their lease."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from peer_rig import RUN, PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards
from experiments.wire.orders import Orders, generate_run_key, sign

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    with serve_folder(tmp_path / "shards") as endpoint:
        yield endpoint, tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))


@contextlib.contextmanager
def training(folder: Path, store: tuple[str, tuple[str, ...]], slots: str) -> Iterator[list[PeerProcess]]:
    """Peers that train together: epochs of about 3 s, chunk timeout 8 s, round timeout 25 s."""
    endpoint, shards = store
    changes = {
        "expected_peers": len(slots), "max_epochs": 1000, "target_batch_size": 96 * len(slots),
        "averaging_timeout_s": 25.0, "next_chunk_timeout_s": 8.0,
    }  # fmt: skip
    peers: list[PeerProcess] = []
    try:
        for slot in slots:
            known = (peers[0].wait_for(lambda s: s.get("maddr"))["maddr"],) if peers else ()
            notice = (folder / slot / "notice.json").as_uri()
            config = config_of(slot, endpoint, shards, initial_peers=known, notice_url=notice, **changes)
            peers.append(PeerProcess(folder / slot, config))
        for peer in peers:
            peer.wait_for(lambda s: s["epoch"] >= 2)
        yield peers
    finally:
        for peer in peers:
            peer.kill()


def announce(peer: PeerProcess, in_s: float) -> None:
    at = datetime.fromtimestamp(time.time() + in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    file = peer.folder / "notice.new"
    file.write_text(json.dumps({"action": "terminate", "time": at}))
    file.replace(peer.folder / "notice.json")


def longest_comm_s(peer: PeerProcess, since_epoch: int) -> float:
    """The longest synchronising step since the epoch; not a number before the first."""
    steps = pd.read_csv(peer.folder / "steps.csv")
    return float(steps[steps["epoch"] >= since_epoch]["optimizer_sync_s"].max())


def worst_comm_s(peer: PeerProcess, epochs: int) -> float:
    """The longest synchronising step of the peer's next epochs."""
    known = peer.status()["epoch"]
    peer.wait_for(lambda s: s["epoch"] >= known + epochs, timeout_s=100.0)
    return longest_comm_s(peer, known)


def test_peer_leaving_after_a_notice_does_not_stall_the_others(tmp_path: Path, store) -> None:
    """First one of three peers leaves, then one of the remaining two; the last one continues alone."""
    with training(tmp_path, store, "abc") as (stays, *leave):
        whole_s = worst_comm_s(stays, 2)
        for peer in leave:
            announce(peer, 120.0)
            began = time.monotonic()
            polite_s = worst_comm_s(stays, 3)
            peer.process.wait(25.0)
            assert time.monotonic() - began < 25.0
            assert peer.process.returncode == 0
            status = peer.status()
            assert status["phase"] == "leaving"
            assert status["notice_at_s"] == pytest.approx(time.time() + 110.0, abs=30.0)
            assert (peer.folder / "egress.csv").is_file()
            assert "leaving within 20 s" in (peer.folder / "peer.log").read_text()
            print(f"a round at most {whole_s:.2f} s before, {polite_s:.2f} s around a polite leave")
            assert polite_s < whole_s + 3.0
        assert not [text for text in stays.status()["warnings"] if "no group" in text]
        assert "NoGroupError" not in (stays.folder / "peer.log").read_text()


def test_silent_peer_stalls_the_other(tmp_path: Path, store) -> None:
    """Its connections stay open and silent, like those of a VM that lost its network."""
    with training(tmp_path, store, "ab") as (stays, frozen):
        known = stays.status()["epoch"]
        os.killpg(frozen.process.pid, signal.SIGSTOP)
        stays.wait_for(lambda _: longest_comm_s(stays, known) > 4.0)
        print(f"a round of {longest_comm_s(stays, known):.2f} s around a silent leave")


def test_expired_lease_ends_a_paused_isolated_peer(tmp_path: Path, store) -> None:
    """It is alone, so its lease is not renewed. Paused, it takes no step; when the lease expires, it exits."""
    endpoint, shards = store
    private, public = generate_run_key()
    folder, lease_s = tmp_path / "a", 14.0
    config = config_of("a", endpoint, shards, max_epochs=1000)
    now_s = time.time()
    orders = sign(Orders(RUN, 1, now_s, now_s + lease_s, True, ()), private)
    changes = {"orders_public_key": public, "orders": base64.b64encode(orders).decode()}
    config = config_of("a", endpoint, shards, max_epochs=1000, **changes)
    peer = PeerProcess(folder, config)
    try:
        peer.wait_for(lambda s: s["phase"] == "training", timeout_s=lease_s)
        assert peer.process.wait(60.0) == 3
        assert lease_s <= time.time() - now_s < lease_s + 20.0  # it runs from the program's start
        status = peer.status()
        assert (status["phase"], status["error"], status["epoch"]) == ("leaving", "lease expired", 0)
        assert len((folder / "steps.csv").read_text().splitlines()) == 1
    finally:
        peer.kill()
