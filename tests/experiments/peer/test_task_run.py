"""A user's task trained by one plain peer, from its files to its published figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import small_task
from peer_rig import PeerProcess, config_of, serve_folder

from analysis.pipeline.merge import read_trace
from cloud.storage.digits import write_shards
from orchestrator.controller.bad_samples import counts_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TASK = {"call": "users_task:build", "with": {}, "sha256": "0" * 64}


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_one_plain_peer_trains_a_users_task(tmp_path: Path, kind: str) -> None:
    made = write_shards(tmp_path / "shards", 2, samples_per_shard=512)
    (tmp_path / "code").mkdir()
    shutil.copy(small_task.__file__, tmp_path / "code" / "users_task.py")
    with serve_folder(tmp_path / "shards") as endpoint:
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        config = config_of(
            "a", endpoint, shards, plain=True, emulated=False, task=TASK, code_folder="../code",
            threads=1, forward_s=0.0, backward_s=0.0, bad_samples="skip",
            workers={"kind": kind, "count": 2, "in_order": kind == "thread"}, trace="ops",
        )  # fmt: skip
        peer = PeerProcess(tmp_path / "peer", config)
        try:
            done = peer.wait_for(lambda status: status["phase"] == "done")
            assert (done["ran"], done["epoch"], done["warnings"]) == ("users_task:build", 3, [])
            log = (peer.folder / "peer.log").read_text()
            assert "held out: loss " in log
            assert ", wer 0." in log
            assert peer.leave() < 10.0
            assert peer.process.returncode == 0
        finally:
            peer.kill()
    trace = read_trace(peer.folder / "trace")
    used = [batch for batch in trace.batches if batch.consumed_ns is not None]
    assert len(used) >= 3 * 256 // 16 - 1
    for batch in used:
        assert (batch.vm, batch.samples) == (config.vm, 16)
        assert {op.sample for op in trace.ops if op.batch == batch.batch}
    makers = {op.pid for op in trace.ops}
    assert (makers == {peer.process.pid}) == (kind == "thread")
    assert {"load", "forward", "backward"} <= {phase.name for phase in trace.phases}
    assert trace.dropped == 0


REFUSES = """

def refuse_some(pixels):
    if int(pixels.sum()) % 5 == 0:
        raise ValueError("a smudge")
    return pixels


CHECK = Op("check", "users_task:refuse_some", "image", "array", "array")
SmallTask.pipeline = SmallTask.heldout_pipeline = Pipeline("checked", FIELDS, (*DECODE, CHECK))
"""


def test_left_out_samples_are_counted_in_the_status(tmp_path: Path) -> None:
    made = write_shards(tmp_path / "shards", 2, samples_per_shard=512)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "users_task.py").write_text(Path(small_task.__file__).read_text() + REFUSES)
    with serve_folder(tmp_path / "shards") as endpoint:
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        config = config_of(
            "a", endpoint, shards, plain=True, emulated=False, task=TASK, code_folder="../code",
            threads=1, forward_s=0.0, backward_s=0.0, bad_samples="skip",
        )  # fmt: skip
        peer = PeerProcess(tmp_path / "peer", config)
        try:
            done = peer.wait_for(lambda status: status["phase"] == "done")
            counts = counts_of(done["bad_samples"])  # as the controller reads it
            assert counts is not None
            for data, what in (("training", "bad samples"), ("heldout", "bad held-out samples")):
                count, first = counts[data]["count"], counts[data]["first"]
                assert count > 1
                assert first.startswith("s3://bucket/")
                assert first.endswith("ValueError: a smudge")
                assert any(text.startswith(f"{count} {what} left out") for text in done["warnings"])
            assert peer.leave() < 10.0
        finally:
            peer.kill()


def test_an_error_in_the_users_file_fails_the_run_once(tmp_path: Path) -> None:
    made = write_shards(tmp_path / "shards", 1, samples_per_shard=64)
    (tmp_path / "code").mkdir()
    shutil.copy(small_task.__file__, tmp_path / "code" / "users_task.py")
    with serve_folder(tmp_path / "shards") as endpoint:
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        task = {**TASK, "with": {"fails": "loss"}}
        config = config_of(
            "a", endpoint, shards, plain=True, emulated=False, task=task, code_folder="../code"
        )
        peer = PeerProcess(tmp_path / "peer", config)
        try:
            peer.process.wait(60)
            status = peer.status()
            assert (status["phase"], status["hopeless"]) == ("failed", True)
            assert "users_task.py:" in status["error"]
            assert status["error"].endswith("IndexError: list index out of range")
            assert peer.process.returncode == 1
        finally:
            peer.kill()
