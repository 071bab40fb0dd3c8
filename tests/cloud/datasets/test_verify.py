"""A full check finds each kind of damage and names shard and key."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from storage_fakes import FakeStore, make_tar, opener

from cloud.datasets.verify import bad_member, shard_urls_of, verify
from cloud.storage.publish import Index
from cloud.storage.shards import Shard


def jpeg() -> bytes:
    target = io.BytesIO()
    Image.new("L", (16, 16)).save(target, "jpeg")
    return target.getvalue()


GOOD = {"jpg": jpeg(), "cls": b"1"}


def check(tars, index=None, stored=None):
    store = FakeStore(
        {name: data if isinstance(data, bytes) else make_tar(data) for name, data in tars.items()}
    )
    urls = [f"s3://b/{name}" for name in tars if name != "gone"]
    found = verify(urls, opener(store), index=index, stored=stored)
    return found, [(p.shard.rpartition("/")[2], p.key, p.what) for p in found.problems]


def test_a_good_data_set():
    found, problems = check({"train-000000.tar": {"a": GOOD, "b": GOOD}, "heldout-000000.tar": {"c": GOOD}})
    assert problems == []
    assert (found.samples("train"), found.samples("heldout")) == (2, 1)
    assert found.size_bytes("train") == len(make_tar({"a": GOOD, "b": GOOD}))


@pytest.mark.parametrize(
    ("extension", "data", "sentence"),
    [
        ("jpg", jpeg()[:-30], "cannot be decoded"),
        ("jpg", b"<html>", "cannot be decoded"),
        ("jpg", b"", "is empty"),
        ("txt", b"\xff", "is not UTF-8 (invalid start byte at byte 0)"),
        ("json", b"{", "cannot be decoded"),
        ("npy", b"\x93NUMPY", "cannot be decoded (its header cannot be read"),
        ("npy", b"PK", "cannot be decoded (it does not begin as a .npy file)"),
        ("cls", b"x", "cannot be decoded"),
        ("cls", b"62", "is label 62, out of range 0 to 61"),
        ("cls", b"-1", "out of range"),
        ("wav", b"RIFF", "cannot be decoded"),
        ("flac", b"RIFF", "cannot be decoded"),
    ],
)
def test_bad_members(extension, data, sentence):
    assert sentence in bad_member(extension, data, 62)


@pytest.mark.parametrize(
    ("extension", "data"), [("cls", b"61"), ("txt", "ü".encode()), ("pth", b"?"), ("json", b"1")]
)
def test_good_members(extension, data):
    assert bad_member(extension, data, 62) == ""


def test_damage_is_reported_by_shard_and_key():
    good = make_tar({"a": GOOD})
    _, problems = check(
        {
            "train-000000.tar": {
                "a": GOOD,
                "b": {"jpg": b"no", "cls": b"1"},
                "c": {"cls": b"1"},
                "d": {**GOOD, "x": b"1"},
            },
            "train-000001.tar": good[:1000],
            "train-000002.tar": b"<html>" * 200,
            "train-000003.tar": {},
            "train-000004.tar": {"a": GOOD},
            "heldout-000000.tar": {"a": GOOD},
        }
    )
    texts = [": ".join(problem) for problem in problems]
    for sentence in (
        "train-000000.tar: b: member jpg cannot be decoded",
        "train-000000.tar: c: lacks jpg, unlike most samples",
        "train-000000.tar: d: also has x, unlike most samples",
        "train-000001.tar: : the tar ends at byte",
        "train-000002.tar: : s3://b/train-000002.tar at byte 0: not a tar header",
        "train-000003.tar: : the shard has no samples",
        "train-000004.tar: a: the key is also in train-000000.tar",
        "heldout-000000.tar: a: the key is also in the other split, in train-000000.tar",
    ):
        assert any(text.startswith(sentence) for text in texts), (sentence, texts)
    assert len(texts) == 8


def test_comparison_with_the_index():
    import hashlib

    tars = {"train-000000.tar": make_tar({"a": GOOD}), "train-000001.tar": make_tar({"b": GOOD})}
    shards = [Shard(n, "train", 1, len(d), hashlib.sha256(d).hexdigest(), {}) for n, d in tars.items()]
    files = [{"name": "tokenizer.json", "bytes": 2, "sha256": ""}]
    stored = {n: len(d) for n, d in tars.items()} | {"index.json": 9, "tokenizer.json": 2}
    index = Index({}, shards, files)
    assert check(tars, index, stored)[1] == []
    changed = {**tars, "train-000001.tar": make_tar({"c": GOOD}), "train-000002.tar": make_tar({"d": GOOD})}
    problems = check(changed, index, {})[1]
    assert [what for _, _, what in problems] == [
        "its SHA-256 is not the index's: it was changed or replaced",
        "the shard is not in the index",
        "tokenizer.json is missing or has another size than the index says",
    ]
    index.complete = False
    assert "not finished" in check(tars, index, stored)[1][0][2]
    assert "label 1, out of range 0 to 0" in check(tars, Index({"classes": ["x"]}, shards))[1][0][2]


def test_shards_of_the_index_that_are_gone():
    index = Index({}, [Shard("train-000000.tar", "train", 1, 1, "", {})])
    urls = shard_urls_of("s3://b/v1", index, {"heldout-000000.tar": 1, "index.json": 1})
    assert urls == ["s3://b/v1/train-000000.tar", "s3://b/v1/heldout-000000.tar"]
    found = verify(urls[:1], opener(FakeStore({})), index=index)
    assert "has no object s3://b/v1/train-000000.tar" in found.problems[0].what
    assert found.size_bytes("train") is None
