"""Two real peers in bf16 with a schedule and a clipped gradient end with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards
from experiments.learning_rate import RateSchedule
from experiments.peer.training.emulated_model import build_emulated

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

EPOCHS, LR, CLIP, PARAMETERS = 4, 0.5, 0.1, 20_000
SCHEDULE = {"kind": "cosine", "epochs": EPOCHS, "warmup_epochs": 2, "final": 0.25}


def test_two_peers_with_all_training_keys_end_with_the_same_bits(tmp_path: Path) -> None:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
    peers: list[PeerProcess] = []
    with serve_folder(tmp_path / "shards") as endpoint:
        try:
            for slot in "ab":
                known = (peers[0].wait_for(lambda s: s.get("maddr"))["maddr"],) if peers else ()
                config = config_of(
                    slot, endpoint, shards, initial_peers=known, expected_peers=2, max_epochs=EPOCHS,
                    target_batch_size=128, forward_s=0.04, backward_s=0.06, sync_work_s=0.0, parameters=PARAMETERS,
                    optimizer={"name": "sgd", "lr": LR}, schedule=SCHEDULE, clip_norm=CLIP, precision="bf16",
                )  # fmt: skip
                peers.append(PeerProcess(tmp_path / slot, config))
            done = [peer.wait_for(lambda status: status["phase"] == "done") for peer in peers]
            assert [status["epoch"] for status in done] == [EPOCHS] * 2
            assert (peers[0].folder / "peer.log").read_text().count("group of 2") == EPOCHS
        finally:
            for peer in peers:
                peer.kill()
    one, other = ((peer.folder / "parameters.f32").read_bytes() for peer in peers)
    assert one == other
    begun = build_emulated(PARAMETERS, peers[0].config.seed)
    start = np.concatenate([parameter.detach().flatten().numpy() for parameter in begun.parameters()])
    moved = float(np.linalg.norm(np.frombuffer(one, dtype="<f4") - start))
    most = LR * CLIP * sum(RateSchedule.of(SCHEDULE).factor(epoch) for epoch in range(1, EPOCHS + 1))
    assert 0.5 * most < moved <= 1.001 * most  # steps of this length, in about one direction
