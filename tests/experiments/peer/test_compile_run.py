"""A real peer with two ranks compiles its model before it is announced, and trains; without a compiler it fails once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import norm_task
import pytest
import small_task
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TASK = {"call": "norm_task:build", "with": {}, "sha256": "0" * 64}


def started(folder: Path, endpoint: str, shards: tuple[str, ...], **changes: Any) -> PeerProcess:
    (folder / "code").mkdir()
    for module in (small_task, norm_task):
        shutil.copy(str(module.__file__), folder / "code")
    config = config_of(
        "a", endpoint, shards, plain=True, emulated=False, task=TASK, code_folder="../code", threads=1,
        forward_s=0.0, backward_s=0.0, compile=True, **changes,
    )  # fmt: skip
    return PeerProcess(folder / "peer", config)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_both_ranks_compile_before_the_peer_is_announced(tmp_path: Path) -> None:
    made = write_shards(tmp_path / "shards", 2, samples_per_shard=256)
    shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
    with serve_folder(tmp_path / "shards") as endpoint:
        peer = started(tmp_path, endpoint, shards, ranks=2)
        try:
            done = peer.wait_for(lambda status: status["phase"] == "done", 500)
            assert (done["epoch"], done["warnings"]) == (3, [])
            log = (peer.folder / "peer.log").read_text()
            assert re.search(r"compiled the model in \d+\.\d s", log)
            assert log.index("compiled the model") < log.index("epoch 1:")
            assert peer.leave() < 15.0
        finally:
            peer.kill()


def test_without_a_compiler_the_run_ends_once(tmp_path: Path) -> None:
    made = write_shards(tmp_path / "shards", 1, samples_per_shard=64)
    shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
    with serve_folder(tmp_path / "shards") as endpoint:
        environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "CXX": "no-such-compiler",
        }
        peer = started(tmp_path, endpoint, shards, environment=environment)
        try:
            peer.process.wait(120)
            status = peer.status()
            assert (status["phase"], status["hopeless"]) == ("failed", True)
            assert status["error"].startswith(
                "swarm.compile needs a C++ compiler, but there is no no-such-compiler here"
            )
        finally:
            peer.kill()
