"""Stored prefixes: the same items as from the source, no random operation, and only for the pipeline that made them."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cloud.storage.client import make_client
from cloud.storage.errors import CorruptShardError, PrefixTakenError
from cloud.storage.opener import ShardOpener
from cloud.storage.publish import list_objects, put_index, read_index
from cloud.storage.samples import read_shard
from cloud.storage.url import S3Url
from experiments.pipeline.builtin import digits, imagenet, imagenet_resize, power, speech_mel
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.store_shards import store_prefix, stored_pipeline
from experiments.pipeline.stored import STORED_CODECS, Prefix, decode, encode, resumed, storable
from tests.cloud.storage_fakes import make_tar

HERE = "tests.experiments.pipeline.ops_for_tests"
IMAGENET = imagenet.pipeline(size=16)
TEXT = Pipeline(
    "texts",
    {"text": ("txt",), "other": ("txt", "md"), "noise": ("bin",)},
    (
        Op("text", f"{HERE}:text", "text", "bytes", "text"),
        Op("length", f"{HERE}:length", "text", "text", "number", into="length"),
        Op("upper", f"{HERE}:upper", "text", "text", "text"),
        Op("noise", f"{HERE}:noise", "noise", "bytes", "array", random=True),
        Op("add", f"{HERE}:add_noise", "noise", "array", "array", random=True),
    ),
)


def jpeg(seed: int) -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).resize((48, 36)).save(file, "jpeg")
    return file.getvalue()


def photo(seed: int = 0, **members):
    return {
        "__key__": f"{seed:04d}",
        "__url__": "s3://b/t.tar",
        "jpg": jpeg(seed),
        "cls": b"3",
        "json": b"{}",
        **members,
    }


def stored_sample(prefix: Prefix, sample):
    record = prefix.record(sample)
    return {"__key__": record.key, "__url__": "s3://c/train-000000.tar", **record.members}


def same(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


@pytest.mark.parametrize("codec", STORED_CODECS)
def test_a_stored_decode_gives_the_same_tensors_in_every_pass(codec):
    prefix = Prefix(IMAGENET, 1, codec)
    online = resumed(IMAGENET, json.loads(json.dumps(prefix.manifest())), "s3://c")
    for seed, pass_number in ((0, 0), (0, 1), (7, 3)):
        found = online.run(stored_sample(prefix, photo(seed)), seed, pass_number)
        expected = IMAGENET.run(photo(seed), seed, pass_number)
        assert found.keys() == expected.keys()
        assert all(same(found[key], expected[key]) for key in expected)


@given(ops=st.integers(1, 3), codec=st.sampled_from(STORED_CODECS), text=st.text(), seed=st.integers(0, 9))
def test_every_prefix_gives_the_items_of_the_whole_pipeline(ops, codec, text, seed):
    sample = {"__key__": "k", "__url__": "s3://b/t.tar", "txt": text.encode(), "bin": b"n", "xyz": b"rest"}
    prefix = Prefix(TEXT, ops, codec)
    held = stored_sample(prefix, sample)
    assert held["xyz"] == b"rest"
    found, expected = prefix.online.run(held, seed, 1), TEXT.run(sample, seed, 1)
    assert found.keys() == expected.keys()
    assert all(same(found[key], expected[key]) for key in expected)


def test_members_are_ordinary_and_others_are_untouched():
    held = stored_sample(Prefix(IMAGENET, 1, "png"), photo())
    assert set(held) == {"__key__", "__url__", "image.png", "cls", "json"}
    with Image.open(io.BytesIO(held["image.png"])) as image:
        assert image.size == (48, 36)
    held = stored_sample(Prefix(IMAGENET, 1), photo())
    assert np.load(io.BytesIO(held["image.npy"])).shape == (36, 48, 3)
    assert set(stored_sample(Prefix(IMAGENET, 1, "gzip"), photo())) > {"image.npy.gz"}


@pytest.mark.parametrize("ops", [2, 3, 6])
def test_a_prefix_with_a_random_operation_is_refused(ops):
    with pytest.raises(
        PipelineError,
        match=r"operation crop is random, and only a prefix before the first random operation may be stored \(a stored random "
        r"operation is random no more, and accuracy falls\); store at most the first 1$",
    ):
        Prefix(IMAGENET, ops)


def test_prefixes_out_of_range_and_unknown_codecs_are_refused():
    for ops in (0, -1, 7):
        with pytest.raises(PipelineError, match="choose 1 to 6"):
            Prefix(IMAGENET, ops)
    with pytest.raises(PipelineError, match="'lzma'; use one of none, gzip"):
        Prefix(IMAGENET, 1, "lzma")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (replace(IMAGENET, fields={"image": ("jpg",), "label": ("cls",)}), "the extensions of its fields: "),
        (
            replace(IMAGENET, ops=(IMAGENET.ops[-1], *IMAGENET.ops[:-1])),
            "the operations: decode there, label here",
        ),
        (
            replace(IMAGENET, ops=(imagenet.decode_op(1), *IMAGENET.ops[1:])),
            r'parameters of operation decode: {"mode": "RGB"} there, {"mode": "L"} here',
        ),
        (
            replace(IMAGENET, ops=(replace(IMAGENET.ops[0], libraries=("numpy",)), *IMAGENET.ops[1:])),
            "libraries of operation decode: ",
        ),
        (replace(IMAGENET, ops=()), "the operations: decode there, none here"),
    ],
)
def test_another_fingerprint_is_refused_and_named(changed, sentence):
    manifest = Prefix(IMAGENET, 1).manifest()
    with pytest.raises(PipelineError, match="another pipeline than imagenet: ") as caught:
        resumed(changed, manifest, "s3://c")
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("store the shards again, or use the pipeline that they were made with")


def test_another_source_is_named():
    manifest = Prefix(IMAGENET, 1).manifest()
    manifest["declared"]["ops"][0]["source"] = "0" * 64
    manifest["fingerprint"] = "0" * 64
    with pytest.raises(
        PipelineError, match=r"the source of operation decode \(experiments.*:decode\) is another"
    ):
        resumed(IMAGENET, manifest, "s3://c")


@pytest.mark.parametrize("key", ["format", "ops", "codec", "fingerprint", "fields", "declared"])
@pytest.mark.parametrize("value", [None, 1.5, [], "x"])
def test_a_damaged_manifest_is_one_sentence(key, value):
    manifest = Prefix(IMAGENET, 1).manifest()
    for damaged in ({**manifest, key: value}, {k: v for k, v in manifest.items() if k != key}, value):
        with pytest.raises(PipelineError) as caught:
            resumed(IMAGENET, damaged, "s3://c")
        assert "s3://c" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_cannot_be_stored_names_the_sample():
    with pytest.raises(BadSampleError, match=r"sample 0000: it has a member image\.png already"):
        Prefix(IMAGENET, 1, "png").record(photo(**{"image.png": b""}))
    with pytest.raises(BadSampleError, match="operation decode"):
        Prefix(IMAGENET, 1).record(photo(jpg=b"no image"))
    with pytest.raises(ValueError, match="mode P cannot be stored as an array; use png"):
        encode(Image.new("P", (2, 2)), "image", "none")
    for mode in ("L", "RGBA"):  # libwebp drops an opaque alpha channel
        with pytest.raises(ValueError, match=f"webp cannot hold an image of mode {mode} without loss"):
            encode(Image.new(mode, (2, 2)), "image", "webp")


@pytest.mark.parametrize("codec", ["gzip", "zlib", "zstd"])
def test_a_compressed_value_takes_no_more_memory_than_a_value_may_have(codec, monkeypatch):
    data = encode(np.zeros(5000, np.uint8), "array", codec)
    assert decode(data, "array", codec).size == 5000
    for damaged, says in ((data + b"x", "followed by others|unused data"), (data[:-3], "cut"), (b"", "cut")):
        with pytest.raises(ValueError, match=says):
            decode(damaged, "array", codec)
    monkeypatch.setattr("experiments.pipeline.stored.LARGEST_VALUE_BYTES", 4000)
    with pytest.raises(ValueError, match="more than 4000 bytes"):
        decode(data, "array", codec)
    with pytest.raises(ValueError, match="only up to 4000"):
        encode(np.zeros(5000, np.uint8), "array", codec)


def test_a_zstd_frame_that_hides_its_size_is_refused():
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000))
    with pytest.raises(ValueError, match="do not tell their size"):
        decode(hidden, "array", "zstd")


def test_names_that_npy_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="not Latin-1"):
        encode(np.zeros(2, np.dtype([("\u0416", "i4")])), "array", "none")


@pytest.mark.parametrize(
    ("codec", "mode"), [(c, m) for c in STORED_CODECS for m in ("RGB", "RGBA") if (c, m) != ("webp", "RGBA")]
)
def test_images_are_stored_without_loss(codec, mode):
    levels = np.random.default_rng(3).integers(0, 256, (5, 7, len(mode)), np.uint8)
    found = decode(encode(Image.fromarray(levels), "image", codec), "image", codec)
    assert found.mode == mode
    assert np.array_equal(np.asarray(found), levels)


SOURCES = [f"s3://src/part-{n}.tar" for n in "cab"]


@pytest.fixture
def client(monkeypatch):
    moto = pytest.importorskip("moto")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with moto.mock_aws():
        client = make_client()
        client.create_bucket(Bucket="src")
        for at, url in enumerate(SOURCES):
            samples = {
                f"{at}{n}": {"jpg": jpeg(10 * at + n), "cls": b"%d" % n, "json": b"{}"} for n in range(4)
            }
            put(client, url, make_tar(samples))
        yield client


def put(client, url, data):
    client.put_object(Bucket="src", Key=url.removeprefix("s3://src/"), Body=data)


def store(client, folder, prefix=None, **options):
    opener = ShardOpener(lambda: client)
    return store_prefix(
        prefix or Prefix(IMAGENET, 1, "png"), SOURCES, opener, client, "s3://dst/v", folder=folder, **options
    )


STORED = [f"s3://dst/v/train-{n:06d}.tar" for n in range(3)]


def online_of(client, pipeline=IMAGENET, shards=STORED):
    return stored_pipeline(pipeline, shards, ShardOpener(lambda: client).open)


def items(pipeline, client, shards):
    opener = ShardOpener(lambda: client)
    return {
        sample["__key__"]: pipeline.run(sample, 1, 2)["image"].tobytes()
        for shard in shards
        for sample in read_shard(shard, opener.open(shard))
    }


def test_stored_shards_give_the_items_of_their_sources(client, tmp_path):
    seen = []
    index = store(client, tmp_path, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert index == read_index(client, "s3://dst/v")
    assert [shard.samples for shard in index.shards] == [4, 4, 4]
    assert index.complete
    assert list(tmp_path.iterdir()) == []
    assert [f"s3://dst/v/{shard.name}" for shard in index.shards] == STORED
    found = items(online_of(client), client, STORED)
    assert len(found) == 12
    assert found == items(IMAGENET, client, SOURCES)


@pytest.mark.parametrize("after", range(12))
def test_an_interrupted_writing_goes_on_with_the_shard_it_was_in(client, tmp_path, after, monkeypatch):
    reference = [shard.sha256 for shard in store(client, tmp_path).shards]
    for name in list_objects(client, "s3://dst/v"):
        client.delete_object(Bucket="dst", Key=f"v/{name}")
    run = Prefix.record
    counts = {"samples": 0, "stop": after}

    def record(self, sample):
        if counts["samples"] == counts["stop"]:
            raise KeyboardInterrupt
        counts["samples"] += 1
        return run(self, sample)

    monkeypatch.setattr(Prefix, "record", record)
    with pytest.raises(KeyboardInterrupt):
        store(client, tmp_path)
    with pytest.raises(PipelineError, match=f"holds {after // 4} finished shards of 3; store the rest"):
        online_of(client)
    counts.update(samples=0, stop=-1)
    index = store(client, tmp_path)
    assert counts["samples"] == 12 - after // 4 * 4
    assert [shard.sha256 for shard in index.shards] == reference
    assert store(client, tmp_path) == index
    assert counts["samples"] == 12 - after // 4 * 4


def test_an_interruption_while_going_on_keeps_what_was_finished_before(client, tmp_path, monkeypatch):
    store(client, tmp_path)
    client.delete_object(Bucket="dst", Key="v/train-000000.tar")
    whole = read_index(client, "s3://dst/v")
    whole.complete = False
    put_index(client, S3Url.parse("s3://dst/v"), whole, "")
    run, counts = Prefix.record, {"samples": 0, "stop": 4}

    def record(self, sample):
        if counts["samples"] == counts["stop"]:
            raise KeyboardInterrupt
        counts["samples"] += 1
        return run(self, sample)

    def stopping(done, _):
        if done == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Prefix, "record", record)
    with pytest.raises(KeyboardInterrupt):
        store(client, tmp_path, progress=stopping)
    assert store(client, tmp_path).shards == whole.shards
    assert counts["samples"] == 4  # of the shard that was missing, once


def test_a_prefix_with_other_data_is_refused(client, tmp_path):
    store(client, tmp_path)
    with pytest.raises(PrefixTakenError, match="stored "):
        store(client, tmp_path, Prefix(IMAGENET, 1, "gzip"))
    put(client, SOURCES[0], make_tar({"x": {"jpg": jpeg(1), "cls": b"1"}}))
    with pytest.raises(PrefixTakenError, match="source "):
        store(client, tmp_path)
    client.delete_object(Bucket="dst", Key="v/index.json")
    with pytest.raises(PrefixTakenError, match="shards without an index"):
        store(client, tmp_path)
    with pytest.raises(PipelineError, match="has no stored values"):
        online_of(client)
    with pytest.raises(PipelineError, match="has no stored values"):
        online_of(client, shards=SOURCES)


def test_shards_that_are_not_those_of_the_manifest_are_refused(client, tmp_path):
    store(client, tmp_path)
    with pytest.raises(PipelineError, match=r"train-000003\.tar is none of the 3 stored shards"):
        online_of(client, shards=[*STORED, "s3://dst/v/train-000003.tar"])
    with pytest.raises(PipelineError, match="one prefix, but these lie under s3://dst/v, s3://src"):
        online_of(client, shards=[*STORED, *SOURCES])
    with pytest.raises(PipelineError, match="another pipeline than imagenet-heldout"):
        online_of(
            client, imagenet.heldout_pipeline(classes=2).__class__("imagenet-heldout", IMAGENET.fields, ())
        )


def test_bad_samples_are_raised_or_left_out_and_empty_shards_are_errors(client, tmp_path):
    put(client, SOURCES[1], make_tar({"y": {"jpg": b"no", "cls": b"1"}, "z": {"jpg": jpeg(1), "cls": b"1"}}))
    with pytest.raises(BadSampleError, match="sample y, operation decode"):
        store(client, tmp_path)
    assert list(tmp_path.rglob("*.tar")) == []
    bad = []
    index = store(client, tmp_path, bad_sample=bad.append)
    assert ([error.key for error in bad], index.samples("train")) == (["y"], 9)
    put(client, SOURCES[1], make_tar({"y": {"jpg": b"no", "cls": b"1"}}))
    client.delete_object(Bucket="dst", Key="v/index.json")
    for name in list_objects(client, "s3://dst/v"):
        client.delete_object(Bucket="dst", Key=f"v/{name}")
    with pytest.raises(CorruptShardError, match="it has no good sample"):
        store(client, tmp_path, bad_sample=bad.append)


def test_the_example_of_the_page_stores_shards(client, tmp_path, monkeypatch):
    [code] = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[3] / "docs" / "stored.md").read_text(), re.DOTALL
    )
    monkeypatch.setattr("cloud.storage.client.ClientPerProcess", lambda endpoint: lambda: client)
    code = code.replace("s3://photos/train-{n:06d}.tar", "s3://src/part-{'abc'[n]}.tar").replace(
        "range(32)", "range(3)"
    )
    found = {}
    exec(code.replace("/tmp/stored", str(tmp_path)), found)
    assert [shard.samples for shard in found["index"].shards] == [4, 4, 4]
    assert {"cls", "image.png", "json"} == found["index"].shards[0].members.keys()


@pytest.mark.parametrize(
    ("pipeline", "most"),
    [
        (imagenet.pipeline(), 1),
        (imagenet.heldout_pipeline(), 6),
        (imagenet_resize.pipeline(), 3),
        (speech_mel.pipeline(), 3),
        (power.pipeline(), 2),
        (digits.pipeline(), 2),
    ],
    ids=lambda value: value.name if isinstance(value, Pipeline) else str(value),
)
def test_the_built_in_ones_can_be_stored_up_to_their_first_random_operation(pipeline: Pipeline, most: int):
    assert storable(pipeline) == most
    Prefix(pipeline, most)
    if most < len(pipeline.ops):
        with pytest.raises(
            PipelineError, match="only a prefix before the first random operation may be stored"
        ):
            Prefix(pipeline, most + 1)
