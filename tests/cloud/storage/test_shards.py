"""Shards: equal records give equal bytes, sizes are kept, and keys decide the split."""

from __future__ import annotations

import hashlib

import pytest
from webdataset.tariterators import group_by_keys, tar_file_expander

from cloud.storage.errors import DataSourceError
from cloud.storage.samples import read_shard
from cloud.storage.shards import (
    HELDOUT,
    TRAIN,
    Record,
    ShardWriter,
    fraction_of,
    safe_key,
    shard_pattern,
    split_of,
)


def records(count: int, size: int = 700):
    return [
        Record(f"dir/{n:04d}", {"txt": bytes([n % 256]) * size, "cls": str(n).encode()}) for n in range(count)
    ]


def written(folder, items, **options):
    writer = ShardWriter(folder, **options)
    try:
        done = [shard for record in items for shard in writer.write(record)]
    except BaseException:
        writer.abandon()
        raise
    return done + writer.close()


def test_equal_records_give_equal_bytes_and_the_index_describes_them(tmp_path):
    a = written(tmp_path / "a", records(25), max_samples=10)
    b = written(tmp_path / "b", records(25), max_samples=10)
    assert a == b
    assert [(s.name, s.samples) for s in a] == [
        ("train-000000.tar", 10), ("train-000001.tar", 10), ("train-000002.tar", 5),
    ]  # fmt: skip
    for one, other in zip(a, b, strict=True):
        data = one.path.read_bytes()
        assert data == other.path.read_bytes()
        assert (one.size_bytes, one.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert a[2].members == {"txt": 5 * 700, "cls": 10}
    # Fixed for good: other bytes would be uploaded again everywhere.
    assert a[0].sha256 == "37baf4446475f456e3557d5d6926210b64e764f1e5406b4e8250fd782c9fff88"


def test_every_sample_is_read_back_by_our_reader_and_by_webdataset(tmp_path):
    items = [Record("ein/Schl\u00fcssel", {"txt": b"a", "seg.png": b"b"}), Record("x" * 150, {"txt": b""})]
    shard = written(tmp_path, items, max_samples=10)[0]
    with shard.path.open("rb") as file:
        ours = list(read_shard("t", file))
    with shard.path.open("rb") as file:
        theirs = list(group_by_keys(tar_file_expander([{"url": "t", "stream": file}])))
    for found in (ours, theirs):
        assert [s["__key__"] for s in found] == [r.key for r in items]
        assert [{k: v for k, v in s.items() if not k.startswith("_")} for s in found] == [
            r.members for r in items
        ]


def test_shards_stay_below_the_limit_in_bytes(tmp_path):
    shards = written(tmp_path, records(50), max_bytes=20_000)
    assert sum(s.samples for s in shards) == 50
    assert all(s.samples == 7 for s in shards[:-1])  # 2560 bytes each, and the end of the tar
    large = written(tmp_path / "large", records(3, 50_000), max_bytes=20_000)
    assert [s.samples for s in large] == [1, 1, 1]


def test_the_split_depends_on_the_key_only_and_a_larger_share_keeps_the_smaller_one(tmp_path):
    keys = [f"k{n}" for n in range(4000)]
    few, many = ({k for k in keys if split_of(k, share) == HELDOUT} for share in (0.1, 0.3))
    assert few < many
    assert abs(len(few) / 4000 - 0.1) < 0.02
    assert abs(sum(map(fraction_of, keys)) / 4000 - 0.5) < 0.02
    shards = written(tmp_path, [Record(k, {"txt": b""}) for k in keys[:100]], heldout=0.3, max_samples=1000)
    assert [s.split for s in shards] == [TRAIN, HELDOUT]
    given = written(tmp_path / "g", [Record("a", {"txt": b""}, HELDOUT)], max_samples=1)
    assert [s.name for s in given] == ["heldout-000000.tar"]


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([Record("a", {"txt": b""}), Record("a", {"txt": b""})], "'a' occurs twice"),
        ([Record("a.b", {"txt": b""})], "cannot be a sample's key"),
        ([Record("", {"txt": b""})], "cannot be a sample's key"),
        ([Record("dir/", {"txt": b""})], "cannot be a sample's key"),
        ([Record("a\nb", {"txt": b""})], "cannot be a sample's key"),
        ([Record("a", {})], "no members"),
        ([Record("a", {"_x": b""})], "cannot be an extension"),
    ],
)
def test_records_that_could_not_be_read_back_are_refused(tmp_path, items, sentence):
    with pytest.raises(DataSourceError, match=sentence):
        written(tmp_path, items, max_samples=10)


def test_limits_must_make_sense(tmp_path):
    with pytest.raises(ValueError, match="one limit"):
        ShardWriter(tmp_path)
    with pytest.raises(ValueError, match="held-out share"):
        ShardWriter(tmp_path, max_samples=1, heldout=1.0)


def test_names():
    assert safe_key("a.b/c.d.jpg") == "a.b/c_d_jpg"
    assert shard_pattern(["train-000000.tar", "train-000009.tar"]) == "train-{000000..000009}.tar"
    assert shard_pattern(["heldout-000000.tar"]) == "heldout-000000.tar"
