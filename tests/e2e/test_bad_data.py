"""A user's own object store with something wrong about it: told before anything is rented."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from running import orch

from cloud.storage.client import make_client
from cloud.storage.digits import make_digits
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment

pytestmark = pytest.mark.e2e

SECRET = "hunter2-is-in-no-message"


@dataclass
class Store:
    """The embedded Swift, standing for a store of the user's, with 3 good shards in s3://digits."""

    endpoint: str
    keys: dict[str, str]
    client: Any
    shard: bytes


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="e-", dir="/tmp") as base:
        if "ORCH_SWIFT_VENV" not in os.environ:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            patch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        with SwiftServer(Path(base) / "store", environment=swift_environment()) as server:
            keys = server.credentials
            client = make_client(server.endpoint, access_key=keys.access_key, secret_key=keys.secret_key)
            made = make_digits(3, "s3://digits", client, folder=Path(base), samples_per_shard=20)
            yield Store(
                server.endpoint, keys.environment(), client, (Path(base) / made.train[1]).read_bytes()
            )
            client.close()


def launch(store: Store, *overrides: str, **environment: str) -> tuple[int, str]:
    """Exit code and the last line of stderr, after a look that nothing else is there."""
    wishes = {"data.endpoint": store.endpoint, "data.shards": "s3://digits/train-{000000..000002}.tar"}
    wishes |= dict(wish.split("=", 1) for wish in overrides)
    done = orch(
        "launch", "local-2", "--yes", *(f"--set={key}={value}" for key, value in wishes.items()),
        **{**store.keys, **environment},
    )  # fmt: skip
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr
    assert store.keys["AWS_SECRET_ACCESS_KEY"] not in done.stderr
    assert not list(Path(os.environ["ORCH_HOME"]).glob("runs/*"))
    return done.returncode, done.stderr.splitlines()[-1]


def test_nobody_at_the_endpoint_a_wrong_secret_no_bucket(clean_home: Path, store: Store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    code, said = launch(store, f"data.endpoint={nobody}")
    assert code == 2
    assert f"no answer from the object store at {nobody}" in said
    assert "start the store or correct the endpoint" in said
    code, said = launch(store, AWS_SECRET_ACCESS_KEY=SECRET)
    assert code == 2
    assert f"{store.endpoint} refused our credentials" in said
    assert "AWS_SECRET_ACCESS_KEY" in said
    code, said = launch(store, "data.shards=s3://nowhere/train-000000.tar")
    assert code == 2
    assert f"{store.endpoint} has no bucket 'nowhere'" in said
    code, said = launch(store, "data.shards=s3://digits/train-{000000..000003}.tar")
    assert code == 2
    assert "has no object s3://digits/train-000003.tar" in said
    code, said = launch(store, "data.endpoint=https://127.0.0.1:1")
    assert code == 2
    assert "use an http endpoint" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shard: shard[:7000], "the tar ends at byte 7000, before its end-of-archive mark"),
        (lambda shard: b"\x1f\x8b" + shard[2:], "at byte 0: not a tar header"),
    ],
    ids=["truncated", "corrupt"],
)
def test_a_shard_that_is_no_whole_tar(clean_home: Path, store: Store, change: Any, said: str):
    store.client.put_object(Bucket="digits", Key="train-000001.tar", Body=change(store.shard))
    try:
        code, sentence = launch(store)
    finally:
        store.client.put_object(Bucket="digits", Key="train-000001.tar", Body=store.shard)
    assert code == 2
    assert f"s3://digits/train-000001.tar{':' if 'ends' in said else ''} {said}" in sentence
    assert "upload it" in sentence


def test_names_the_embedded_store_does_not_give(clean_home: Path, store: Store):
    code, said = launch(store, "data.endpoint=", "data.shards=s3://digits/mine-{0..9}.tar")
    assert code == 2
    assert "use these names, or set data.endpoint" in said
