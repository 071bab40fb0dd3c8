"""Real peers that are killed all at once: their successors go on from the newest checkpoint, bit for bit."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import small_task
from peer_rig import RUN, PeerProcess, config_of

from cloud.storage.client import make_client
from cloud.storage.digits import make_digits
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment
from experiments.checkpoints.download import download
from experiments.checkpoints.store import CheckpointStore
from experiments.peer.config import PeerConfig
from experiments.peer.training.parameter_digest import parameters_sha
from experiments.tasks.saving import load_weights

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PREFIX = f"s3://bucket/checkpoints/{RUN}"
TASK = {"call": "users_task:build", "with": {}, "sha256": "0" * 64}


@dataclass(frozen=True)
class Stored:
    """A store with shards."""

    settings: dict[str, str]
    shards: tuple[str, ...]
    variables: dict[str, str]

    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(PREFIX, self.settings)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    (tmp_path / "code").mkdir()
    shutil.copy(small_task.__file__, tmp_path / "code" / "users_task.py")
    with pytest.MonkeyPatch.context() as patch:
        if "ORCH_SWIFT_VENV" not in os.environ:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            patch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        environment = swift_environment()
    with SwiftServer(tmp_path / "swift", environment=environment) as server:
        keys = server.credentials
        settings = {"endpoint": server.endpoint, "access_key": keys.access_key, "secret_key": keys.secret_key}
        client = make_client(**settings)
        made = make_digits(2, "s3://bucket", client, folder=tmp_path, samples_per_shard=256)
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        yield Stored(settings, shards, keys.environment())
        client.close()


def config(slot: str, generation: int, stored: Stored, **changes: Any) -> PeerConfig:
    made = config_of(
        slot, stored.settings["endpoint"], stored.shards, emulated=False, task=TASK, code_folder="../code", threads=1,
        environment=stored.variables, batch_size=64,
        checkpoint={
            "prefix": PREFIX, "every_epochs": 2, "every_s": None, "keep": 2, "writers": ["a", "b"], "start": None,
        },
    )  # fmt: skip
    vm = f"{RUN}-{slot}-{generation}"
    return dataclasses.replace(made, vm=vm, generation=generation, **changes)


def two_peers(folder: Path, generation: int, stored: Stored, **changes: Any) -> list[PeerProcess]:
    changes = {"expected_peers": 2, **changes}
    first = PeerProcess(folder / f"a{generation}", config("a", generation, stored, **changes))
    maddr = first.wait_for(lambda status: status.get("maddr"))["maddr"]
    changes["initial_peers"] = (maddr,)
    return [first, PeerProcess(folder / f"b{generation}", config("b", generation, stored, **changes))]


@pytest.mark.parametrize("overlap", ["none", "delayed"])
def test_a_swarm_that_was_lost_goes_on_from_its_checkpoint(
    tmp_path: Path, stored: Stored, overlap: str
) -> None:
    store = stored.checkpoints()
    peers = two_peers(tmp_path, 0, stored, max_epochs=1000, overlap=overlap)
    try:
        first = peers[0].wait_for(lambda status: len(status["checkpoints"]["stored"]) >= 2)
        assert first["checkpoints"]["error"] is None
        for peer in peers:
            peer.kill()
        newest = store.newest()
        assert newest is not None
        assert (
            newest.samples == 256 * newest.epoch
        )  # by whichever peer, if the other's announcement came late
        last = newest.epoch + 3  # the last epoch is stored, although it is not due
        peers = two_peers(tmp_path, 1, stored, max_epochs=last, overlap=overlap)
        done = [peer.wait_for(lambda status: status["phase"] == "done") for peer in peers]
        for status in done:
            restored = status["checkpoints"]["restored"]
            assert (restored["name"], restored["epoch"]) == (newest.name, newest.epoch)
            assert restored["bytes"] == newest.size_bytes
            assert (status["epoch"], status["checkpoints"]["error"]) == (last, None)
            assert status["join"]["state_bytes"] == 0, "nothing of it came from the other peer"
        logs = [(peer.folder / "peer.log").read_text() for peer in peers]
        assert all(log.count("group of 2") == 3 for log in logs)
        shas = {status["parameters_sha"] for status in done}
        assert len(shas) == 1, "equal bits on both peers"
        kept = store.newest()
        assert kept is not None
        assert (kept.epoch, kept.parent) == (last, newest.name)
        assert (
            len([one for one in store.list() if one.problem is None]) <= 3
        )  # `keep`, and one by the other peer
        download(store, kept.name, tmp_path / "pulled")
        task = small_task.build({}, seed=1)
        load_weights(task, tmp_path / "pulled" / "model" / "model.safetensors")
        assert {parameters_sha(task.model.parameters())} == shas
        for peer in peers:
            assert list((peer.folder / "restored").iterdir()) == []
            assert not (peer.folder / "checkpoint").exists()
            assert peer.leave() < 10.0
    finally:
        for peer in peers:
            peer.kill()


def test_a_plain_loop_goes_on_from_its_checkpoint(tmp_path: Path, stored: Stored) -> None:
    first = PeerProcess(tmp_path / "a0", config("a", 0, stored, plain=True, max_epochs=1000))
    second = None
    try:
        first.wait_for(lambda status: status.get("checkpoints", {}).get("stored"))
        first.kill()
        newest = stored.checkpoints().newest()
        assert newest is not None
        last = newest.epoch + 1
        second = PeerProcess(tmp_path / "a1", config("a", 1, stored, plain=True, max_epochs=last))
        done = second.wait_for(lambda status: status["phase"] == "done")
        assert done["checkpoints"]["restored"]["name"] == newest.name
        assert (done["epoch"], done["checkpoints"]["error"]) == (last, None)
        assert done["checkpoints"]["stored"][-1]["epoch"] == last
    finally:
        for peer in (first, second):
            if peer is not None:
                peer.kill()
