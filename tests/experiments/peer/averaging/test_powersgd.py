"""Three real peers that send matrices as PowerSGD factors stay one swarm and learn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards
from experiments.averaging.powersgd import sent
from experiments.peer.training.emulated_model import build_emulated

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

EPOCHS = 7
PARAMETERS, MATRICES, RANK = 60_000, ((200, 150), (120, 100)), 2
ROUND = re.compile(r"averaged (\d+) values for (\d+), from (new|the last round's) factors")
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
                target_batch_size=3 * 128, compression=f"powersgd:{RANK}", parameters=PARAMETERS, matrices=MATRICES,
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


def test_peers_with_powersgd_stay_one_swarm_and_learn(start) -> None:
    first = [start(slot) for slot in "abc"]
    for peer in first:
        status = peer.wait_for(lambda s: s["phase"] == "done")
        assert status["epoch"] == EPOCHS
        assert not [text for text in status["warnings"] if "given up" in text], status
    assert len({peer.status()["parameters_sha"] for peer in first}) == 1  # bit by bit
    shapes = [(tuple(p.shape), 1) for p in build_emulated(PARAMETERS, 0, MATRICES).parameters()]
    rounds = ROUND.findall(log_of(first[0]))
    assert {(int(values), int(of)) for values, of, _ in rounds} == {(sent(shapes, RANK).wire, PARAMETERS)}
    begun = [how for _, _, how in rounds]
    assert begun[0] == "new"
    assert begun.count("the last round's") >= EPOCHS - 2, begun
    found = HELD_OUT.search(log_of(first[0]))
    assert found is not None
    assert float(found[2]) < 2.15  # 1.99 was measured; ln 10 = 2.30 is what guessing has
