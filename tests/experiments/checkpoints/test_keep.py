"""The newest checkpoint is copied out of a store before it is removed, and into the store of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_rig import KEYS, RUN, TO, manifest, plain_files
from moto import mock_aws

from cloud.storage.client import make_client
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.keep import keep_newest, put_back
from experiments.checkpoints.layout import run_prefix
from experiments.checkpoints.store import CheckpointStore
from experiments.checkpoints.upload import upload


@mock_aws
def test_the_newest_that_can_be_read_is_kept(tmp_path: Path) -> None:
    prefix, told = run_prefix(TO, RUN), list[Any]()
    arguments = {"prefix": prefix, "folder": str(tmp_path / "kept"), "endpoint": "", **KEYS}
    keep_newest(arguments, told.append)
    assert told.pop() == {"name": None, "problems": []}, "there is not even a bucket"
    client = make_client(**KEYS)
    client.create_bucket(Bucket="bucket")
    keep_newest(arguments, told.append)
    assert told.pop() == {"name": None, "problems": []}
    store = CheckpointStore(prefix, KEYS)
    older, newer = (
        upload(store, plain_files(tmp_path / str(epoch), epoch), manifest(epoch)) for epoch in (1, 2)
    )
    url = store.url_of(newer.name, "state/state.json")
    client.put_object(Bucket=url.bucket, Key=url.key, Body=b"x" * 700)
    keep_newest(arguments, told.append)
    kept = told.pop()
    assert kept["name"] == older.name
    assert "state/state.json differs from the SHA-256" in kept["problems"][0]
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.name[0] != "."] == [older.name]
    assert (tmp_path / "kept" / older.name / "model" / "model.safetensors").read_bytes() == b"\1" * 3000
    client.delete_object(Bucket=url.bucket, Key=url.key)
    client.put_object(Bucket=url.bucket, Key=f"{url.key.replace('02', '03', 1)}", Body=b"an upload goes on")
    keep_newest(arguments, told.append)
    assert [problem.partition(";")[0] for problem in told.pop()["problems"]] == [
        f"{store.where(newer.name)} lacks its file state/state.json"
    ]


@mock_aws
def test_a_kept_one_is_put_into_another_store(tmp_path: Path) -> None:
    prefix, told = run_prefix(TO, RUN), list[Any]()
    client = make_client(**KEYS)
    client.create_bucket(Bucket="bucket")
    store = CheckpointStore(prefix, KEYS)
    stored = upload(store, plain_files(tmp_path / "files", 3), manifest(3))
    arguments = {"prefix": prefix, "folder": str(tmp_path / "kept"), "endpoint": "", **KEYS}
    keep_newest(arguments, told.append)
    folder = tmp_path / "kept" / stored.name
    again = {**arguments, "prefix": run_prefix("s3://bucket/checkpoints-from", RUN), "folder": str(folder)}
    put_back(again, told.append)
    assert told[-1] == {"checkpoint_bytes": stored.size_bytes}
    assert CheckpointStore(again["prefix"], KEYS).newest() == stored
    (folder / "state" / "state.json").write_bytes(b"x" * 700)
    with pytest.raises(CheckpointError, match="differs from its manifest"):
        put_back(again, told.append)
