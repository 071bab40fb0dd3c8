"""Weights and tokenizers in the store: a peer copies them and builds the task with the copies."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cloud.storage.client import ClientPerProcess  # noqa: E402 - after torch is known to exist
from cloud.storage.errors import StorageError  # noqa: E402
from cloud.storage.opener import RetryPolicy, ShardOpener  # noqa: E402
from experiments.peer.training.stored_settings import with_stored_files  # noqa: E402
from experiments.peer.training.task import build_runner  # noqa: E402
from experiments.tasks.build import BUILT_IN, build  # noqa: E402
from experiments.tasks.saving import save  # noqa: E402
from tests.experiments.peer_rig import config_of, serve_folder  # noqa: E402
from tests.experiments.task_rig import digest, write_tokenizer  # noqa: E402

CALL = BUILT_IN["causal-lm"]


def test_a_peer_starts_from_weights_and_tokenizer_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    given = build(CALL, {"tokenizer": tokenizer}, 8)
    save(given, tmp_path)
    settings = {"tokenizer": "s3://bucket/tokenizer.json", "weights": "s3://bucket/model.safetensors"}
    task = {"call": CALL, "with": settings, "sha256": "0" * 64}
    config = config_of("a", "", (), task=task, emulated=False)
    with serve_folder(tmp_path) as endpoint:
        opener = ShardOpener(ClientPerProcess(endpoint), endpoint=endpoint)
        found = with_stored_files(config, tmp_path, opener.open)
        with pytest.raises(StorageError):
            with_stored_files(
                config_of("a", "", (), task={**task, "with": {"weights": "s3://other/w"}}, emulated=False),
                tmp_path,
                ShardOpener(
                    ClientPerProcess(endpoint, attempts=1),
                    endpoint=endpoint,
                    retry=RetryPolicy(0.01, 0.01, 0.05),
                ).open,
            )
    assert opener.counter.read().network_bytes > (tmp_path / "model.safetensors").stat().st_size
    assert found.task is not None
    assert digest(build_runner(found)._task) == digest(given)
    assert digest(build(CALL, {"tokenizer": tokenizer}, config.seed)) != digest(given)


def test_settings_of_a_users_own_task_are_hers(tmp_path: Path) -> None:
    task = {"call": "small_task:build", "with": {"weights": "s3://bucket/w"}, "sha256": "0" * 64}
    config = config_of("a", "", (), task=task, emulated=False)
    assert with_stored_files(config, tmp_path, lambda url: pytest.fail(url)) == config
    assert with_stored_files(config_of("a", "", ()), tmp_path, lambda url: pytest.fail(url)).task is None
