"""Data sets in a store: resumed after any interruption, never mixed with another one, complete once there is an index."""

from __future__ import annotations

import hashlib
import json

import pytest
from botocore.exceptions import ConnectionClosedError
from moto import mock_aws
from storage_fakes import client_error

from cloud.storage.client import make_client
from cloud.storage.errors import (
    BadUrlError,
    DataSourceError,
    PrefixTakenError,
    StoreFailedError,
    StoreRefusedError,
)
from cloud.storage.publish import Progress, list_objects, publish, read_index, splits_table
from cloud.storage.shards import Record

TO = "s3://bkt/v1"


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield make_client()


def records(count: int = 45):
    return (Record(f"{n:04d}", {"txt": str(n).encode() * 50}) for n in range(count))


def put(client, folder, items=None, to=TO, **options):
    seen: list[Progress] = []
    options = {"made": {"dataset": "x"}, "heldout": 0.2, "max_samples": 10, **options}
    index = publish(
        items if items is not None else records(), to, client, folder=folder, progress=seen.append,
        sleep=lambda s: None, **options,
    )  # fmt: skip
    return index, seen[-1]


def test_stores_shards_files_and_an_index_that_describes_them(client, tmp_path):
    index, progress = put(client, tmp_path, files=lambda: {"tokenizer.json": b"{}"})
    assert read_index(client, TO) == index
    stored = list_objects(client, TO)
    assert stored.keys() == {s.name for s in index.shards} | {"tokenizer.json", "index.json"}
    for shard in index.shards:
        body = client.get_object(Bucket="bkt", Key=f"v1/{shard.name}")["Body"].read()
        assert (len(body), hashlib.sha256(body).hexdigest()) == (shard.size_bytes, shard.sha256)
    assert index.samples("train") + index.samples("heldout") == 45 == progress.samples
    assert 0 < index.samples("heldout") < 20
    assert list(tmp_path.iterdir()) == []  # nothing is left on this machine
    rows = splits_table(index, TO)
    assert rows[0]["shards"].startswith("s3://bkt/v1/train-{000000..00000")
    assert rows[0]["bytes"] == sum(s.size_bytes for s in index.of("train"))


def test_what_is_stored_is_not_sent_again(client, tmp_path):
    first, sent = put(client, tmp_path)
    assert (sent.uploaded, sent.unchanged) == (len(first.shards), 0)
    client.put_object(Bucket="bkt", Key="v1/train-000001.tar", Body=b"changed")
    again, sent = put(client, tmp_path)
    assert (sent.uploaded, sent.unchanged) == (1, len(first.shards) - 1)
    assert again == first


@pytest.mark.parametrize("after", [1, 15, 30, 44])
def test_an_interrupted_upload_is_incomplete_and_goes_on(client, tmp_path, after):
    def interrupted():
        for number, record in enumerate(records()):
            if number == after:
                raise KeyboardInterrupt
            yield record

    with pytest.raises(KeyboardInterrupt):
        put(client, tmp_path / "1", interrupted())
    index = read_index(client, TO)
    assert index is not None
    assert not index.complete
    whole, sent = put(client, tmp_path / "2")
    assert read_index(client, TO) == whole
    assert sent.uploaded + sent.unchanged == len(whole.shards)
    assert list_objects(client, TO).keys() == {s.name for s in whole.shards} | {"index.json"}


def test_broken_connections_are_retried(client, tmp_path, monkeypatch):
    real, errors = (
        client.upload_fileobj,
        [client_error("SlowDown", 503), ConnectionClosedError(endpoint_url="x")],
    )

    def flaky(*args, **options):
        if errors:
            raise errors.pop()
        return real(*args, **options)

    monkeypatch.setattr(client, "upload_fileobj", flaky)
    index, sent = put(client, tmp_path)
    assert not errors
    assert sent.uploaded == len(index.shards)


def test_a_store_that_keeps_failing_ends_it(client, tmp_path, monkeypatch):
    def broken(*args, **options):
        raise client_error("InternalError", 500)

    monkeypatch.setattr(client, "upload_fileobj", broken)
    with pytest.raises(StoreFailedError, match=r"s3://bkt/v1/train-00000\d\.tar"):
        put(client, tmp_path)
    index = read_index(client, TO)
    assert index is not None
    assert not index.complete


def test_another_data_set_is_never_overwritten_unasked(client, tmp_path):
    put(client, tmp_path)
    with pytest.raises(PrefixTakenError, match=r'dataset "x" there, "y" here.*--replace'):
        put(client, tmp_path, made={"dataset": "y"})
    index, _ = put(client, tmp_path, records(12), made={"dataset": "y"}, replace=True, heldout=0)
    assert [s.name for s in index.shards] == ["train-000000.tar", "train-000001.tar"]
    assert list_objects(client, TO).keys() == {"train-000000.tar", "train-000001.tar", "index.json"}
    client.put_object(Bucket="bkt", Key="other/train-000000.tar", Body=b"")
    with pytest.raises(PrefixTakenError, match="shards without an index"):
        put(client, tmp_path, to="s3://bkt/other")


def test_other_objects_and_prefixes_are_left_alone(client, tmp_path):
    client.create_bucket(Bucket="bkt")
    for key in ("v1/notes.txt", "v1/train-x.tar", "v10/train-000000.tar", "v1/deep/train-000000.tar"):
        client.put_object(Bucket="bkt", Key=key, Body=b"mine")
    put(client, tmp_path)
    put(client, tmp_path, records(11), made={"dataset": "x"})
    keys = {item["Key"] for item in client.list_objects_v2(Bucket="bkt")["Contents"]}
    assert {"v1/notes.txt", "v1/train-x.tar", "v10/train-000000.tar", "v1/deep/train-000000.tar"} < keys


def test_empty_sources_and_empty_splits(client, tmp_path):
    with pytest.raises(DataSourceError, match="no samples for s3://bkt/v1"):
        put(client, tmp_path, [])
    with pytest.raises(DataSourceError, match="heldout is empty"):
        put(client, tmp_path, records(1), heldout=1e-9)


def test_a_bucket_that_is_not_writable_is_noticed_first(client, tmp_path, monkeypatch):
    client.create_bucket(Bucket="bkt")

    def refused(**request):
        raise client_error("AccessDenied", 403)

    monkeypatch.setattr(client, "put_object", refused)

    def never():
        pytest.fail("read the source")
        yield

    with pytest.raises(StoreRefusedError, match=r"s3://bkt/v1 cannot be written .*s3:PutObject"):
        put(client, tmp_path, never())


def test_keys_that_may_write_but_not_create_buckets(client, tmp_path, monkeypatch):
    client.create_bucket(Bucket="bkt")

    def refused(**request):
        raise client_error("AccessDenied", 403)

    monkeypatch.setattr(client, "create_bucket", refused)
    monkeypatch.setattr(client, "head_bucket", refused)
    put(client, tmp_path)


def test_an_index_of_another_version_or_none_at_all(client, tmp_path):
    put(client, tmp_path)
    document = json.loads(client.get_object(Bucket="bkt", Key="v1/index.json")["Body"].read())
    for body, sentence in (
        (json.dumps({**document, "format": 2}), "has format 2, and this version of orch reads format 1"),
        ("[]", "is not an index"),
        ("no json", "is not an index"),
        (json.dumps({"format": 1}), "is not an index"),
    ):
        client.put_object(Bucket="bkt", Key="v1/index.json", Body=body.encode())
        with pytest.raises(BadUrlError, match=sentence):
            read_index(client, TO)
    assert read_index(client, "s3://bkt/nothing") is None
