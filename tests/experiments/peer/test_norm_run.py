"""Two real peers train a network with batch normalisation on different samples and evaluate alike."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import norm_task
import pytest
import small_task
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TASK = {"call": "norm_task:build", "with": {}, "sha256": "0" * 64}


def test_two_peers_evaluate_alike(tmp_path: Path) -> None:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    (tmp_path / "code").mkdir()
    for module in (small_task, norm_task):
        shutil.copy(str(module.__file__), tmp_path / "code")
    shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
    peers: list[PeerProcess] = []
    with serve_folder(tmp_path / "shards") as endpoint:
        try:
            for slot in "ab":
                known = (peers[0].wait_for(lambda s: s.get("maddr"))["maddr"],) if peers else ()
                config = config_of(
                    slot, endpoint, shards, initial_peers=known, expected_peers=2, target_batch_size=512,
                    emulated=False, task=TASK, code_folder="../code", threads=1, forward_s=0.04, backward_s=0.06,
                    sync_work_s=0.0,
                )  # fmt: skip
                peers.append(PeerProcess(tmp_path / slot, config))
            for peer in peers:
                peer.wait_for(lambda status: status["phase"] == "done")
            logs = [(peer.folder / "peer.log").read_text() for peer in peers]
        finally:
            for peer in peers:
                peer.kill()
    figures = [re.findall(r"held out: (.*)", log) for log in logs]
    assert len(figures[0]) == 1
    assert figures[0] == figures[1]
