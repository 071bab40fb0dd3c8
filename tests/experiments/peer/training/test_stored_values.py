"""A peer whose shards hold the values after the first operations trains on the tensors of the source."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from storage_fakes import FakeStore, make_tar, opener  # noqa: E402 - after torch is known to exist

from cloud.storage.publish import Index  # noqa: E402
from cloud.storage.shards import Shard  # noqa: E402
from experiments.peer.training.bad_samples import BadSamples  # noqa: E402
from experiments.peer.training.decoding import Decoder, Workers  # noqa: E402
from experiments.peer.training.loader import TaskSource  # noqa: E402
from experiments.peer.training.task_data import use_stored_values  # noqa: E402
from experiments.pipeline.op import Op  # noqa: E402
from experiments.pipeline.pipeline import Pipeline  # noqa: E402
from experiments.pipeline.store_shards import STORED  # noqa: E402
from experiments.pipeline.stored import STORED_CODECS, Prefix  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

OPS = "tests.experiments.pipeline.ops_for_tests"
PIPELINE = Pipeline(
    "texts",
    {"text": ("txt",), "noise": ("bin",)},
    (
        Op("text", f"{OPS}:text", "text", "bytes", "text"),
        Op("upper", f"{OPS}:upper", "text", "text", "text"),
        Op("noise", f"{OPS}:noise", "noise", "bytes", "array", random=True),
    ),
)
SAMPLES = {
    f"{name}{n:02d}": {"txt": f"text {name} {n}".encode(), "bin": b"x"} for name in "abc" for n in range(20)
}


def tars(samples):
    return {
        f"train-{at:06d}.tar": make_tar({key: members for key, members in samples.items() if key[0] == name})
        for at, name in enumerate("abc")
    }


def stored(ops, codec):
    prefix = Prefix(PIPELINE, ops, codec)
    samples = {
        key: dict(prefix.record({"__key__": key, "__url__": "s3://b/t.tar", **members}).members)
        for key, members in SAMPLES.items()
    }
    objects = tars(samples)
    shards = [Shard(name, "train", 20, len(data), "", {}) for name, data in objects.items()]
    return {**objects, "index.json": Index({STORED: prefix.manifest()}, shards).to_json().encode()}


def items(objects, pipeline, workers, streams):
    source = TaskSource(
        [f"s3://b/{name}" for name in objects if name.endswith(".tar")],
        opener(FakeStore(objects)).open,
        Decoder(pipeline, 5),
        list,
        workers,
        BadSamples("fail", lambda found: None),
        streams=streams,
    )
    found = {}
    for _ in range(12):
        batch = source.next_batch(10)
        for (_, key), item in zip(batch.samples, batch.batch, strict=True):
            digest = hashlib.sha256(item["text"].encode() + item["noise"].tobytes()).hexdigest()
            found.setdefault(key, []).append(digest)
    source.close()
    return found


@pytest.mark.parametrize("ops", [1, 2])
@pytest.mark.parametrize("codec", STORED_CODECS)
@pytest.mark.parametrize(("workers", "streams"), [(Workers(), 1), (Workers("thread", 3), 3)])
def test_stored_values_give_the_items_of_the_source_in_both_passes(ops, codec, workers, streams):
    objects = stored(ops, codec)
    task = SimpleNamespace(pipeline=PIPELINE, heldout_pipeline=PIPELINE)
    urls = tuple(f"s3://b/{name}" for name in objects if name.endswith(".tar"))
    config = config_of("a", "", urls, stored=True, heldout_shards=("s3://b/heldout-000000.tar",))
    use_stored_values(config, task, opener(FakeStore(objects)).open)
    assert task.heldout_pipeline is PIPELINE
    expected = items(tars(SAMPLES), PIPELINE, Workers(), 1)
    assert len(expected) == 60
    assert all(len(set(digests)) == 2 for digests in expected.values())  # another noise in each pass
    assert items(objects, task.pipeline, workers, streams) == expected


def test_shards_of_the_source_are_read_as_before():
    task = SimpleNamespace(pipeline=PIPELINE)
    use_stored_values(config_of("a", "", ()), task, lambda url: pytest.fail(url))
    assert task.pipeline is PIPELINE
