"""Generated data sets in the shards that an experiment names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
from moto import mock_aws

from cloud.datasets import in_shards, pages
from cloud.datasets.generate import SIZES, Size, generate
from cloud.datasets.in_shards import evenly, store_in_shards
from cloud.datasets.sample_bytes import SAMPLE_BYTES
from cloud.storage.client import make_client
from cloud.storage.errors import DataSourceError
from cloud.storage.publish import Index, Progress, list_objects
from cloud.storage.samples import read_shard
from cloud.storage.shards import HELDOUT, TRAIN

TO = "s3://bkt"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield make_client()


def keys(client, name: str) -> list[str]:
    """The keys of a shard's samples, as a peer reads them."""
    body = client.get_object(Bucket="bkt", Key=name)["Body"].read()
    return [sample["__key__"] for sample in read_shard(name, io.BytesIO(body))]


def counts(index: Index, split: str) -> list[int]:
    return [shard.samples for shard in index.of(split)]


def test_glyphs_have_the_usual_samples_in_each_shard_and_one_heldout_shard(client, tmp_path: Path):
    seen: list[Progress] = []
    index = store_in_shards("glyphs", 2, TO, client, folder=tmp_path, seed=3, progress=seen.append)
    assert counts(index, TRAIN) == [512, 512]
    assert counts(index, HELDOUT) == [128]
    assert list_objects(client, TO).keys() == {
        "train-000000.tar", "train-000001.tar", "heldout-000000.tar", "index.json",
    }  # fmt: skip
    written = [r.key for r in generate("glyphs", 1024, seed=3).records]
    assert [k for s in index.shards for k in keys(client, s.name)] == written
    assert seen[-1].samples == len(written)
    assert index.size_bytes(TRAIN) / 1024 == pytest.approx(SAMPLE_BYTES["glyphs"], rel=0.05)


def test_all_texts_of_stdlib_are_distributed_evenly_over_the_shards(client, tmp_path: Path):
    index = store_in_shards("stdlib", 7, TO, client, folder=tmp_path)
    found = list(generate("stdlib", 0).records)
    train = [r.key for r in found if r.split == TRAIN]
    assert len(index.of(TRAIN)) == 7
    assert max(counts(index, TRAIN)) - min(counts(index, TRAIN)) <= 1
    assert [k for s in index.of(TRAIN) for k in keys(client, s.name)] == train
    assert keys(client, "heldout-000000.tar") == [r.key for r in found if r.split == HELDOUT]
    assert index.size_bytes(TRAIN) / len(train) == pytest.approx(SAMPLE_BYTES["stdlib"], rel=0.05)


@pytest.mark.parametrize(("train", "shards"), [(9, 4), (10, 4), (4, 4), (21_414, 16)])
def test_even_shards_hold_everything(train: int, shards: int):
    most = evenly(train, shards)
    assert callable(most)
    sizes = [most(TRAIN, number) for number in range(shards)]
    assert sum(sizes) == train
    assert max(sizes) - min(sizes) <= 1
    assert most(HELDOUT, 0) == 0  # no limit


def test_more_shards_than_texts_are_refused(client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = generate("glyphs", 5)
    monkeypatch.setattr(in_shards, "generate", lambda *_, **__: few)
    with pytest.raises(
        DataSourceError, match=r"has 5 training samples, too few for 6 shards; name at most 5"
    ):
        store_in_shards("stdlib", 6, TO, client, folder=tmp_path)


@pytest.mark.slow
def test_the_measured_size_of_photos():
    found = [r for r in generate("photos", 24, seed=1).records if r.split == TRAIN]
    mean = sum(len(r.members["jpg"]) for r in found) / len(found)
    assert mean == pytest.approx(SAMPLE_BYTES["photos"], rel=0.5)  # the sizes are lognormal
    assert "speech" not in SAMPLE_BYTES


def test_power_has_one_size_in_each_shard(client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cast(Any, SIZES), "power", Size(16, 4))
    index = store_in_shards("power", 2, TO, client, folder=tmp_path, seed=3)
    assert counts(index, TRAIN) == [4, 4]
    assert keys(client, "heldout-000000.tar") == ["heldout-00000000"]
    for shard in index.of(TRAIN):
        assert shard.size_bytes == pytest.approx(
            4 * SAMPLE_BYTES["power"], abs=10_240
        )  # a tar ends in empty blocks


def test_pages_are_distributed_evenly_and_modules_are_held_out_whole(
    client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = ("base64", "bisect", "calendar", "fractions", "queue", "string", "textwrap", "uuid")
    monkeypatch.setattr(pages, "module_names", lambda: names)
    monkeypatch.setattr(pages, "split_of", lambda name, heldout: HELDOUT if name in names[:2] else TRAIN)
    index = store_in_shards("pages", 3, TO, client, folder=tmp_path)
    assert len(index.of(TRAIN)) == 3
    assert max(counts(index, TRAIN)) - min(counts(index, TRAIN)) <= 1
    assert sorted(keys(client, "heldout-000000.tar")) == ["base64", "bisect"]
    assert index.made["pages"] == sum(counts(index, TRAIN)) + 2


def test_measured_sizes_are_of_data_sets_that_can_be_made():
    assert SAMPLE_BYTES.keys() < SIZES.keys()
