"""The newest checkpoint is copied out of a store before it is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoint_rig import KEYS, RUN, TO, manifest, plain_files
from moto import mock_aws

from cloud.storage.client import make_client
from experiments.checkpoints.keep import keep_newest
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
