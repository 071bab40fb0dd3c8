"""Real peers on loopback average complete rounds, leave quickly, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards
from experiments.peer.processes import descendants
from metrics.records import PHASES

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    with serve_folder(tmp_path / "shards") as endpoint:
        yield endpoint, tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))


def alive_in(session: int) -> list[int]:
    """List the processes of the session, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def wait_until_gone(session: int, timeout_s: float) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while (left := alive_in(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def check_steps(peer: PeerProcess) -> None:
    steps = pd.read_csv(peer.folder / "steps.csv")
    parts = steps[[f"{name}_s" for name in PHASES]]
    assert (parts.sum(axis=1) - steps["wall_s"]).abs().max() < 0.01 * steps["wall_s"].min()
    assert steps["other_s"].sum() < 0.02 * steps["wall_s"].sum()
    padded = steps["forward_s"] + steps["backward_s"]
    config = peer.config
    assert (padded >= config.coalesce * (config.forward_s + config.backward_s) - 1e-5).all()
    assert steps.groupby("epoch")["samples"].sum().min() > 0


def test_two_peers_average_and_leave_nothing_behind(tmp_path: Path, store) -> None:
    endpoint, shards = store
    changes = {"expected_peers": 2, "evaluate_every_epochs": 1}
    first = PeerProcess(tmp_path / "a", config_of("a", endpoint, shards, **changes))
    second = None
    try:
        maddr = first.wait_for(lambda status: status.get("maddr"))["maddr"]
        second = PeerProcess(
            tmp_path / "b", config_of("b", endpoint, shards, **changes, initial_peers=(maddr,))
        )
        done = [peer.wait_for(lambda status: status["phase"] == "done") for peer in (first, second)]
        assert [status["epoch"] for status in done] == [3, 3]
        assert [status["warnings"] for status in done] == [[], []]
        families = [{peer.process.pid, *descendants(peer.process.pid)} for peer in (first, second)]
        for peer, family in zip((first, second), families, strict=True):
            check_steps(peer)
            log = (peer.folder / "peer.log").read_text()
            assert log.count("group of 2") == 3
            assert "held out: accuracy" in log
            turn = {"a": 2, "b": 1}[peer.config.slot]  # both evaluate after the last epoch
            assert re.findall(r"held out after epoch (\d): accuracy", log) == [str(turn)]
            assert peer.leave() < 10.0
            assert peer.process.returncode == 0
            assert wait_until_gone(peer.process.pid, 2.0) == []
            assert list(peer.temporary.rglob("*")) == []
            assert [f for pid in family for f in Path("/dev/shm").glob(f"torch_{pid}_*")] == []
    finally:
        for peer in (first, second):
            if peer is not None:
                peer.kill()


def test_sigterm_in_the_middle_and_sigkill_leave_no_process(tmp_path: Path, store) -> None:
    """One peer gets SIGTERM while both train; the other continues alone and is then killed with SIGKILL."""
    endpoint, shards = store
    changes = {"expected_peers": 2, "max_epochs": 1000, "target_batch_size": 128}
    first = PeerProcess(tmp_path / "a", config_of("a", endpoint, shards, **changes))
    second = None
    try:
        maddr = first.wait_for(lambda status: status.get("maddr"))["maddr"]
        second = PeerProcess(
            tmp_path / "b", config_of("b", endpoint, shards, initial_peers=(maddr,), **changes)
        )
        second.wait_for(lambda status: status["epoch"] >= 1)
        assert second.leave() < 10.0
        assert second.process.returncode == 0
        assert second.status()["phase"] == "leaving"
        assert wait_until_gone(second.process.pid, 2.0) == []
        assert list(second.temporary.rglob("*")) == []
        epoch = first.status()["epoch"]
        first.wait_for(lambda status: status["epoch"] >= epoch + 2)
        os.kill(first.process.pid, signal.SIGKILL)  # only the parent: Hivemind's processes must follow
        first.process.wait()
        assert wait_until_gone(first.process.pid, 5.0) == []
    finally:
        for peer in (first, second):
            if peer is not None:
                peer.kill()
