"""The digits: the same bytes for the same seed, and nothing of the held-out digits in the train shards."""

from __future__ import annotations

import io

import boto3
import numpy as np
import pytest
from moto import mock_aws
from PIL import Image

from cloud.storage import digits
from cloud.storage.check import check_shards
from cloud.storage.client import ClientPerProcess, make_client, storage_errors
from cloud.storage.digits import make_bucket, make_digits, write_shards
from cloud.storage.errors import (
    BadUrlError,
    BucketMissingError,
    CorruptShardError,
    KeyMissingError,
    StoreRefusedError,
    StoreUnreachableError,
    TruncatedShardError,
)
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import read_shard
from experiments.pipeline.builtin import digits as digits_pipeline


@pytest.fixture
def aws(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def png(width, height):
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "png")
    return file.getvalue()


def decoded(path):
    with path.open("rb") as file:
        items = [digits_pipeline.pipeline().run(sample, 0, 0) for sample in read_shard(path.name, file)]
    return np.stack([item["image"] for item in items]), np.array([item["label"] for item in items])


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made = write_shards(tmp_path / name, 2, samples_per_shard=30, seed=seed)
    files = [{p.name: p.read_bytes() for p in sorted((tmp_path / n).iterdir())} for n in "abc"]
    assert files[0] == files[1]
    assert files[0]["train-000000.tar"] != files[2]["train-000000.tar"]
    assert files[0]["heldout-000000.tar"] == files[2]["heldout-000000.tar"]
    assert (made.train, made.heldout) == (("train-000000.tar", "train-000001.tar"), ("heldout-000000.tar",))
    assert made.size_bytes == sum(len(data) for data in files[2].values())


def test_heldout_digits_are_as_they_are_and_none_is_a_source_of_the_train_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "_augment", lambda images, rng: images)
    made = write_shards(tmp_path, 3, samples_per_shard=500)
    train = np.concatenate([decoded(tmp_path / name)[0] for name in made.train])
    heldout, labels = decoded(tmp_path / made.heldout[0])
    originals, all_labels, mask = digits._originals()
    assert np.allclose(heldout, originals[mask].reshape(-1, 64), atol=0.5 / 255)
    assert set(map(bytes, train)).isdisjoint(map(bytes, heldout))
    assert len(set(map(bytes, train))) == (~mask).sum()  # one round and more: every original is there
    counts = np.bincount(labels, minlength=10)
    assert np.all(np.abs(counts / np.bincount(all_labels) - digits.HELD_OUT_SHARE) < 0.01)


def test_augmentation_changes_pixels_and_keeps_them_near(tmp_path):
    images, _, _ = digits._originals()
    changed = digits._augment(images, np.random.default_rng(0))
    assert changed.dtype == np.float32
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert 0.01 < np.abs(changed - images).mean() < 0.1


@mock_aws
def test_make_digits_makes_the_bucket_once_and_uploads_under_a_prefix(aws, tmp_path):
    for _ in range(2):
        make_digits(2, "s3://digits/v1", make_client(), folder=tmp_path, samples_per_shard=5)
    opener = ShardOpener(ClientPerProcess())
    with opener.open("s3://digits/v1/train-000001.tar") as file:
        assert file.read() == (tmp_path / "train-000001.tar").read_bytes()
    listed = boto3.client("s3", "us-east-1").list_objects_v2(Bucket="digits")["Contents"]
    assert [item["Key"] for item in listed] == [
        "v1/heldout-000000.tar",
        "v1/train-000000.tar",
        "v1/train-000001.tar",
    ]


@mock_aws
def test_missing_bucket_and_missing_key_are_told_apart(aws):
    opener = ShardOpener(ClientPerProcess())
    with pytest.raises(BucketMissingError, match="has no bucket 'nowhere'"):
        opener.open("s3://nowhere/a.tar")
    boto3.client("s3", "us-east-1").create_bucket(Bucket="here")
    with pytest.raises(KeyMissingError, match=r"has no object s3://here/a\.tar"):
        opener.open("s3://here/a.tar")


@mock_aws
def test_the_check_before_a_run_reads_the_first_and_the_last_shard(aws, tmp_path):
    client = make_client()
    made = make_digits(2, "s3://digits", client, folder=tmp_path, samples_per_shard=5)
    shards = [f"s3://digits/{name}" for name in made.train]
    assert check_shards(shards, client) == (tmp_path / made.train[0]).stat().st_size
    with pytest.raises(KeyMissingError, match=r"s3://digits/train-000002\.tar"):
        check_shards([*shards, "s3://digits/train-000002.tar"], client)
    with pytest.raises(BucketMissingError):
        check_shards(["s3://nowhere/a.tar"], client)
    with pytest.raises(BadUrlError, match="no shards"):
        check_shards([], client)


@mock_aws
def test_the_check_finds_shards_that_are_no_whole_tars(aws, tmp_path):
    client = make_client()
    made = make_digits(3, "s3://digits", client, folder=tmp_path, samples_per_shard=5)
    shards = [f"s3://digits/{name}" for name in made.train]
    whole = (tmp_path / made.train[1]).read_bytes()
    for content, error, said in (
        (whole[: len(whole) // 2], TruncatedShardError, f"ends at byte {len(whole) // 2}"),
        (b"", TruncatedShardError, "ends at byte 0"),
        (b"<html>" * 500, CorruptShardError, r"at byte 0: not a tar header"),
        (bytes(10240), CorruptShardError, "contains no samples"),
    ):
        client.put_object(Bucket="digits", Key=made.train[1], Body=content)
        with pytest.raises(error, match=rf"{shards[1]}.*{said}"):
            check_shards(shards, client)


@mock_aws
def test_sample_of_many_shards_includes_first_and_last(aws, tmp_path):
    client = make_client()
    made = make_digits(1, "s3://digits", client, folder=tmp_path, samples_per_shard=5)
    body = (tmp_path / made.train[0]).read_bytes()
    shards = [f"s3://digits/{n}.tar" for n in range(40)]
    for n in (0, 13, 26, 39):
        client.put_object(Bucket="digits", Key=f"{n}.tar", Body=body)
    assert check_shards(shards, client, most=4) == len(body)
    client.delete_object(Bucket="digits", Key="39.tar")
    with pytest.raises(KeyMissingError):
        check_shards(shards, client, most=4)


def test_no_credentials_is_a_refusal_and_names_the_variables(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with (
        pytest.raises(StoreRefusedError, match=r"no credentials .* AWS_ACCESS_KEY_ID"),
        storage_errors("http://127.0.0.1:9", "b", "k"),
    ):
        make_client("http://127.0.0.1:9").get_object(Bucket="b", Key="k")


def test_unreachable_endpoint_and_invalid_url(aws):
    with pytest.raises(StoreUnreachableError, match=r"no answer from .*http://127\.0\.0\.1:9") as caught:
        make_bucket(make_client("http://127.0.0.1:9", attempts=1), "b", endpoint="http://127.0.0.1:9")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(StoreUnreachableError, match="'nonsense' is not a URL"):
        make_client("nonsense")
