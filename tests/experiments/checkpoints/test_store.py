"""Uploads and downloads against a store: whatever breaks off, the older checkpoint is used and nothing foreign is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.awsrequest import AWSResponse
from checkpoint_rig import (
    KEYS,
    RUN,
    TO,
    BrokenOff,
    broken_off,
    equal_bits,
    keys_of,
    manifest,
    plain_files,
    saved,
    trained,
    unfinished,
)
from moto import mock_aws

from cloud.storage.client import make_client
from cloud.storage.opener import RetryPolicy
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment
from experiments.checkpoints.download import download, partial_folder
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.folder import CheckpointFolder
from experiments.checkpoints.layout import run_prefix
from experiments.checkpoints.state import load_state
from experiments.checkpoints.store import CheckpointStore
from experiments.checkpoints.upload import PART_BYTES, upload

PREFIX = "some/checkpoints/run-1"


@pytest.fixture
def settings():
    """An empty bucket."""
    with mock_aws():
        make_bucket(KEYS)
        yield KEYS


def make_bucket(settings) -> None:
    make_client(**settings).create_bucket(Bucket="bucket")


def store_of(settings) -> CheckpointStore:
    """A store with a client of its own, as in another process."""
    return CheckpointStore(run_prefix(TO, RUN), settings, retry=RetryPolicy(deadline_s=0.0))


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lamb"])
def test_round_trip_is_exact(settings, tmp_path, optimizer):
    store, sent, received = store_of(settings), [], []
    task, chosen, _ = saved(tmp_path / "made", optimizer, 2, note="x")
    assert store.newest() is None
    stored = upload(store, tmp_path / "made", manifest(2), sent.append)
    assert store.newest() == stored
    assert download(store, stored.name, tmp_path / "got", received.append) == stored
    assert sum(sent) == sum(received) == stored.size_bytes
    other, restored, other_ballast = trained(optimizer, 0, seed=7)
    load_state(tmp_path / "got", other, restored, other_ballast)
    assert all(
        equal_bits(tensor, other.model.state_dict()[name]) for name, tensor in task.model.state_dict().items()
    )
    for one, two in zip(chosen.param_groups[0]["params"], restored.param_groups[0]["params"], strict=True):
        assert all(equal_bits(value, restored.state[two][name]) for name, value in chosen.state[one].items())
    assert {p.name for p in (tmp_path / "got").iterdir()} == {"model", "state", "manifest.json"}


def broken_uploads(settings, tmp_path: Path) -> None:
    """Break an upload off at every request, as a killed process does."""
    store, files = store_of(settings), plain_files(tmp_path / "files", 1, PART_BYTES)
    older = upload(store, plain_files(tmp_path / "older", 2), manifest(1))
    with broken_off(store, None) as requests:
        upload(store, files, manifest(2, "counts"))
    assert requests.count("UploadPart") == 2
    store.delete([manifest(2, "counts").name])
    for k in range(len(requests)):
        with pytest.raises(BrokenOff), broken_off(store, k):
            upload(store, files, manifest(2, "killed"))
        assert store.newest() == older, f"broken off at request {k}, {requests[k]}"
        download(store, older.name, tmp_path / f"older-{k}")
        # Another VM goes on, or the same one tries again.
        next_one = manifest(3, "goes-on") if k % 2 else manifest(2, "killed")
        stored = upload(store, plain_files(tmp_path / "next", 3), next_one)
        assert store.newest() == stored
        store.prune(2)
        assert {one.name for one in store.list()} == {older.name, stored.name}
        assert len(keys_of(store)) == 6
        assert unfinished(store) == []
        store.delete([stored.name])
    assert {one.name for one in store.list()} == {older.name}


def test_upload_broken_off_at_every_request(settings, tmp_path):
    broken_uploads(settings, tmp_path)


@pytest.mark.processes
def test_upload_to_the_embedded_store_broken_off_at_every_request(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        if "ORCH_SWIFT_VENV" not in os.environ:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            patch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        environment = swift_environment()
    with SwiftServer(tmp_path / "swift", environment=environment) as server:
        keys = server.credentials
        settings = {"endpoint": server.endpoint, "access_key": keys.access_key, "secret_key": keys.secret_key}
        make_bucket(settings)
        broken_uploads(settings, tmp_path)
        store_of(settings).check_writable()


def test_a_checkpoint_of_the_same_name_is_replaced_by_remains_at_worst(settings, tmp_path):
    store = store_of(settings)
    older = upload(store, plain_files(tmp_path / "1", 1), manifest(1))
    upload(store, plain_files(tmp_path / "2", 2), manifest(2))
    with pytest.raises(BrokenOff), broken_off(store, 9):
        upload(store, plain_files(tmp_path / "3", 3), manifest(2))
    assert store.newest() == older
    replaced = upload(store, plain_files(tmp_path / "3", 3), manifest(2))
    assert download(store, replaced.name, tmp_path / "got") == store.newest() == replaced


def test_deletion_broken_off_at_every_request_leaves_no_checkpoint_that_does_not_load(settings, tmp_path):
    store, k = store_of(settings), -1
    for k in range(20):
        for epoch in (1, 2):
            upload(store, plain_files(tmp_path / str(epoch), epoch), manifest(epoch))
        try:
            with broken_off(store, k):
                store.prune(1)
        except BrokenOff:
            for one in store.list():
                if one.problem is None:
                    download(store, one.name, tmp_path / f"{k}-{one.epoch}")
            store.prune(1)
        else:
            break
        assert {key.split("/")[3] for key in keys_of(store)} == {manifest(2).name}
    assert k > 5


def test_retention_deletes_only_what_the_run_stored(settings, tmp_path):
    store = store_of(settings)
    client = store.client()
    foreign = {
        f"{PREFIX}/notes.txt",
        f"{PREFIX}/epoch-00000001-x/notes.txt",
        f"{PREFIX}/epoch-1-x/manifest.json",
        f"{PREFIX}-2/epoch-00000001-x/manifest.json",
        f"{PREFIX}/old/epoch-00000001-x/model/a",
    }
    for key in foreign:
        client.put_object(Bucket="bucket", Key=key, Body=b"x")
    parts = client.create_multipart_upload(Bucket="bucket", Key=f"{PREFIX}/old/x")
    for epoch in range(1, 5):
        upload(store, plain_files(tmp_path, epoch), manifest(epoch))
    assert store.prune(2) == (manifest(2).name, manifest(1).name)
    assert {key for key in keys_of(store) if "run-1-a-1" not in key} == foreign
    assert [one.epoch for one in store.list() if one.problem is None] == [4, 3]
    assert unfinished(store) == [parts["Key"]]
    assert store.prune(2) == ()


def test_another_writers_upload_that_is_going_on_is_left_alone(settings, tmp_path):
    store = store_of(settings)
    with pytest.raises(BrokenOff), broken_off(store, 5):
        upload(store, plain_files(tmp_path / "a", 1), manifest(5, "slow"))
    remains = {key for key in keys_of(store) if "slow" in key}
    assert remains
    upload(store, plain_files(tmp_path / "b", 2), manifest(5, "fast"))
    store.prune(1)
    assert {key for key in keys_of(store) if "slow" in key} == remains


@pytest.mark.parametrize(
    ("case", "code", "message"),
    [
        ("content", "corrupt", r"model/model.safetensors differs from the SHA-256 in its manifest"),
        ("cut", "corrupt", r"state/state.json is cut: it has 699 of 700 bytes"),
        ("missing", "incomplete", "lacks its file state/state.json"),
        ("unfinished", "incomplete", "has no manifest.json"),
        ("newer", "newer_format", "has format 2, and this version of orch reads format 1"),
        ("garbage", "corrupt", "is not the manifest of a checkpoint"),
        ("huge", "corrupt", r"manifest.json is not the manifest of a checkpoint \(it has 16000001 bytes"),
        ("nested", "corrupt", "is not the manifest of a checkpoint"),
        ("run", "foreign", "has the manifest of epoch-00000002-run-1-a-1 of run other"),
        ("task", "foreign", r"is of another task \(small, SHA-256 ffffffffffff instead of 000000000000\)"),
        ("none", "none", "epoch-00000009-run-1-a-1 does not exist"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_the_older_one_offered(
    settings, tmp_path, case, code, message
):
    store = store_of(settings)
    client = store.client()
    older = upload(store, plain_files(tmp_path / "1", 1), manifest(1))
    newer = upload(store, plain_files(tmp_path / "2", 2), manifest(2))
    url = f"{PREFIX}/{newer.name}"

    def put(file: str, content: bytes) -> None:
        client.put_object(Bucket="bucket", Key=f"{url}/{file}", Body=content)

    if case == "content":
        put("model/model.safetensors", b"\x03" * 3000)
    elif case == "cut":
        put("state/state.json", b"\2" * 699)
    elif case in ("missing", "unfinished"):
        file = "state/state.json" if case == "missing" else "manifest.json"
        client.delete_object(Bucket="bucket", Key=f"{url}/{file}")
    elif case in ("newer", "run"):
        document = json.loads(newer.to_json())
        document |= {"format": 2} if case == "newer" else {"run_id": "other"}
        put("manifest.json", json.dumps(document).encode())
    elif case in (unreadable := {"garbage": b"\xff", "huge": b" " * 16_000_001, "nested": b"[" * 200_000}):
        put("manifest.json", unreadable[case])
    name = manifest(9).name if case == "none" else newer.name
    with pytest.raises(CheckpointError, match=message) as raised:
        download(store, name, tmp_path / "got", task_sha256="0" * 64 if case == "task" else "f" * 64)
    assert raised.value.code == code
    offered = newer.name if case == "none" else older.name
    assert raised.value.older == offered
    assert str(raised.value).endswith(f"use the older checkpoint {offered}")
    assert not (tmp_path / "got").exists()
    found = store.newest()
    assert found == (newer if case in ("content", "task", "none") else older)


def test_a_broken_download_is_continued(settings, tmp_path):
    store = store_of(settings)
    stored = upload(store, plain_files(tmp_path / "made", 5, 300_000), manifest(1))
    target = tmp_path / "got"
    partial = partial_folder(target) / "model/model.safetensors"
    partial.parent.mkdir(parents=True)
    partial.write_bytes((tmp_path / "made/model/model.safetensors").read_bytes()[:100_000])
    (partial.parent / "left-over").write_bytes(b"x")
    ranges: list[str | None] = []
    store.client().meta.events.register(
        "before-send.s3.GetObject", lambda request, **_: ranges.append(request.headers.get("Range"))
    )
    counted: list[int] = []
    download(store, stored.name, target, counted.append)
    assert b"bytes=100000-" in ranges
    assert sum(counted) == stored.size_bytes
    assert not partial_folder(target).exists()
    assert sorted(p.name for p in target.rglob("*") if p.is_file()) == [
        "manifest.json",
        "model.safetensors",
        "state.json",
    ]
    assert (target / "model/model.safetensors").read_bytes() == (
        tmp_path / "made/model/model.safetensors"
    ).read_bytes()
    assert download(store, stored.name, target) == stored  # already there


def test_a_partial_file_of_something_else_is_fetched_again(settings, tmp_path):
    store = store_of(settings)
    stored = upload(store, plain_files(tmp_path / "made", 5), manifest(1))
    for file, size in (("model/model.safetensors", 100), ("state/state.json", 5000)):
        partial = partial_folder(tmp_path / "got") / file
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"x" * size)
    counted: list[int] = []
    download(store, stored.name, tmp_path / "got", counted.append)
    assert sum(counted) == stored.size_bytes
    assert (tmp_path / "got/model/model.safetensors").read_bytes() == b"\5" * 3000


def test_a_folder_with_other_content_is_not_touched(settings, tmp_path):
    store = store_of(settings)
    stored = upload(store, plain_files(tmp_path / "made", 5), manifest(1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="mine has other content than epoch-00000001-run-1-a-1"):
        download(store, stored.name, tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_files_can_be_chosen_and_placed(settings, tmp_path):
    store = store_of(settings)
    stored = upload(store, plain_files(tmp_path / "made", 5), manifest(1))

    def fetch(placed):
        return download(
            store, stored.name, tmp_path / "got", wanted=lambda file: file.startswith("model/"), placed=placed
        )

    assert fetch(lambda file: file.removeprefix("model/")) == stored
    assert sorted(p.name for p in (tmp_path / "got").iterdir()) == ["manifest.json", "model.safetensors"]
    (tmp_path / "got/model.safetensors").write_bytes(b"mine")
    with pytest.raises(CheckpointError, match=r"got/model.safetensors is missing or was changed"):
        fetch(lambda file: file.removeprefix("model/"))
    with pytest.raises(CheckpointError, match="has files of the same name"):
        fetch(lambda file: "manifest.json")


def test_a_folder_is_read_like_a_store(settings, tmp_path):
    store, held = store_of(settings), CheckpointFolder(tmp_path / "checkpoints", RUN)
    stored = [upload(store, plain_files(tmp_path / str(epoch), epoch), manifest(epoch)) for epoch in (1, 2)]
    for one in stored:
        download(store, one.name, held.folder / one.name)
    (held.folder / "notes").mkdir()
    assert [(one.manifest, one.problem) for one in held.list()] == [(stored[1], None), (stored[0], None)]
    assert [one.bytes for one in held.list()] == [one.bytes for one in store.list()]
    assert download(held, stored[1].name, tmp_path / "got") == stored[1]
    assert (tmp_path / "got/state/state.json").read_bytes() == b"\2" * 700
    (held.folder / stored[1].name / "state/state.json").unlink()
    with pytest.raises(CheckpointError, match=f"lacks its file .*use the older checkpoint {stored[0].name}"):
        download(held, stored[1].name, tmp_path / "again")


def test_an_upload_is_stopped_within_a_file(settings, tmp_path):
    store, sent = store_of(settings), []
    with pytest.raises(CheckpointError, match="was stopped") as raised:
        upload(
            store,
            plain_files(tmp_path, 1, 2 * PART_BYTES),
            manifest(1),
            sent.append,
            lambda: sum(sent) > PART_BYTES,
        )
    assert raised.value.code == "incomplete"
    assert store.list() == ()
    assert unfinished(store) == []


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (501, "NotImplemented")])
def test_a_store_that_does_not_list_unfinished_uploads_is_used(settings, tmp_path, caplog, status, code):
    store = CheckpointStore(run_prefix(TO, RUN), {**settings, "attempts": 1})

    def refuse(**_):
        body = f"<Error><Code>{code}</Code></Error>".encode()
        return AWSResponse("", status, {}, cast(Any, SimpleNamespace(stream=lambda: [body])))

    store.client().meta.events.register_first("before-send.s3.ListMultipartUploads", refuse)
    upload(store, plain_files(tmp_path, 1), manifest(1))
    upload(store, plain_files(tmp_path, 2), manifest(2))
    assert store.prune(1) == (manifest(1).name,)
    assert "cannot be listed, so they stay" in caplog.text


def test_a_prefix_that_cannot_be_written_is_found_before(settings):
    store = store_of(settings)
    store.check_writable()
    assert keys_of(store) == set()
    missing = CheckpointStore("s3://no-such-bucket/p/run-1", settings)
    with pytest.raises(CheckpointError, match=r"below s3://no-such-bucket/p/run-1 .*has no bucket") as raised:
        missing.check_writable()
    assert raised.value.code == "unwritable"


def test_a_manifest_of_another_run_is_not_stored_here(settings, tmp_path):
    with pytest.raises(CheckpointError, match="is not the prefix of run other"):
        upload(store_of(settings), plain_files(tmp_path, 1), manifest(1, run_id="other"))
