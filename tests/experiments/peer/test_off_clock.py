"""A real peer on a machine whose clock is wrong and is set during training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_peer_with_a_wrong_clock_set_in_mid_run_misses_no_round(
    tmp_path: Path,
) -> None:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    with serve_folder(tmp_path / "shards") as endpoint:
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        _train(tmp_path, endpoint, shards)


def _train(tmp_path: Path, endpoint: str, shards: tuple[str, ...]) -> None:
    plan: dict[str, Any] = {"expected_peers": 2, "max_epochs": 4}
    first = PeerProcess(tmp_path / "a", config_of("a", endpoint, shards, **plan))
    second = None
    try:
        maddr = first.wait_for(lambda status: bool(status.get("maddr")))["maddr"]
        second = PeerProcess(
            tmp_path / "b", config_of("b", endpoint, shards, **plan, initial_peers=(maddr,)),
            off_clock=(-3500.0, 7000.0, tmp_path / "set"),
        )  # fmt: skip
        second.wait_for(lambda status: status["epoch"] >= 1)
        (tmp_path / "set").touch()
        for peer in (first, second):
            status = peer.wait_for(lambda status: status["phase"] == "done")
            assert (status["epoch"], status["warnings"]) == (4, [])
            assert (peer.folder / "peer.log").read_text().count("group of 2") == 4
            assert abs(status["join"]["at_s"] - time.time()) < 300.0
    finally:
        for peer in (first, second):
            if peer is not None:
                peer.kill()
