"""A failing peer's status and how the controller interprets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from cloud.provider import Observed
from cloud.storage.errors import CorruptShardError, StoreUnreachableError, TruncatedShardError
from experiments.peer import peer
from experiments.peer.status import Status
from experiments.peer.swarm.start_weights import StartWeightsError
from experiments.peer.training.decoding import WorkerEndedError
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.tasks.protocol import TaskError
from orchestrator.controller import tick as shell

SHARD = "s3://digits/train-000001.tar"


@pytest.mark.parametrize(
    ("error", "hopeless"),
    [
        (CorruptShardError(SHARD, 512, "not a tar header"), True),
        (TruncatedShardError(SHARD, 7000), True),
        (StoreUnreachableError(f"nobody gave a byte of {SHARD}"), False),
        (BadSampleError(SHARD, "00000003", "decode", "it is no image"), True),
        (TaskError(f"my_task.py:7: wrong for {SHARD}"), True),
        (PipelineError(f"the first 100 samples are all bad, such as one of {SHARD}"), True),
        (StartWeightsError(f"the weights differ, and {SHARD} is not to blame"), True),
        (WorkerEndedError(f"a process that decodes {SHARD} ended"), False),
    ],
)
def test_errors_of_data_and_task_are_unrecoverable_and_an_unreachable_store_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, hopeless: bool
):
    def assemble(*_: object) -> None:
        raise error

    monkeypatch.setattr(peer, "assemble", assemble)
    assert peer.run(cast(Any, None), tmp_path, tmp_path, Status(tmp_path / "status.json")) == 1
    status = json.loads((tmp_path / "status.json").read_text())
    ended = "its program ended with exit code 1"
    seen = Observed("r-a-0", "failed", "gcp/us-central1", None, 1.0, 2.0, 3.0, ended, None, status)
    event = shell._observed(seen, 4.0)
    assert isinstance(event, shell.ev.Observed)
    assert (event.cause, event.unrecoverable) == (str(error), hopeless)
    assert SHARD in event.cause


def test_killed_peer_is_not_blamed_for_its_last_status():
    seen = Observed(
        "r-a-0", "failed", "gcp/us-central1", None, 1.0, 2.0, 3.0, "its program was killed by signal 9", None,
        {"phase": "training", "error": None, "hopeless": False},
    )  # fmt: skip
    event = shell._observed(seen, 4.0)
    assert isinstance(event, shell.ev.Observed)
    assert (event.cause, event.unrecoverable) == ("its program was killed by signal 9", False)
