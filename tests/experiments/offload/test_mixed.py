"""Samples from the server: the same tensors as from the store whatever was offloaded, and a tar for any reader."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from concurrent.futures import Future

import numpy as np
import pytest
from PIL import Image
from webdataset.autodecode import Decoder, imagehandler
from webdataset.tariterators import group_by_keys, tar_file_iterator

from cloud.storage.samples import read_entries, read_shard
from cloud.storage.shards import Record
from experiments.offload import shard_stream
from experiments.offload.errors import PlanError, RefusedError
from experiments.offload.mixed import MixedPipeline, Transformer
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.shard_stream import OFFSET_HEADER, Ahead, transformed_shard
from experiments.pipeline.errors import BadSampleError
from tests.cloud.storage_fakes import make_tar
from tests.experiments.offload.offload_rig import (
    PIPELINE,
    SEED,
    URL,
    digests,
    mixed_choices,
    photo,
    read_bytes,
    samples,
    stream,
)

SAMPLES = samples(36)
TAR = make_tar(SAMPLES)
AS_STORED = digests(read_bytes(TAR), PIPELINE)
CHOICES = [{}, *({key: Choice(k) for key in SAMPLES} for k in range(7)), mixed_choices(SAMPLES)]
CHOICES += [{key: Choice(k, codec) for key in SAMPLES} for k, codec in ((1, "png"), (2, "webp"), (3, "zstd"))]


@pytest.mark.parametrize("choices", CHOICES)
def test_two_passes_give_the_same_tensors_whatever_is_offloaded(choices: dict[str, Choice]) -> None:
    plan = OffloadPlan.of(PIPELINE, SEED, choices)
    found = digests(
        lambda pass_number: read_shard(URL, io.BytesIO(stream(TAR, plan, pass_number))),
        MixedPipeline(PIPELINE, SEED),
    )
    assert found == AS_STORED
    assert len(set(found)) == 2 * len(SAMPLES)  # random operations run anew in the second pass


def test_members_say_after_which_operation_they_are_and_others_stay() -> None:
    plan = OffloadPlan.of(PIPELINE, SEED, {"0000": Choice(2, "webp"), "0001": Choice(6), "0002": Choice(4)})
    found = {s["__key__"]: s for s in read_shard(URL, io.BytesIO(stream(TAR, plan, 0)))}
    names = [sorted(set(found[key]) - {"__key__", "__url__"}) for key in sorted(found)[:4]]
    assert names == [
        ["cls", "image.op2.webp", "json"],
        ["image.op6.npy", "json", "label.op6.json"],
        ["cls", "image.op4.npy", "json"],
        ["cls", "jpg", "json"],
    ]
    assert found["0003"] == {"__key__": "0003", "__url__": URL, **SAMPLES["0003"]}


def test_webdataset_reads_and_decodes_the_tar() -> None:
    plan = OffloadPlan.of(PIPELINE, SEED, {"0000": Choice(2, "webp"), "0001": Choice(4)})
    files = ({**file, "__url__": URL} for file in tar_file_iterator(io.BytesIO(stream(TAR, plan, 0))))
    found = list(map(Decoder([imagehandler("rgb8")]), group_by_keys(files)))
    assert [one["__key__"] for one in found] == list(SAMPLES)
    assert found[0]["image.op2.webp"].shape == (16, 16, 3)
    assert found[1]["image.op4.npy"].shape == (3, 16, 16)


def test_the_bytes_from_a_sample_on_are_the_same_wherever_the_stream_begins() -> None:
    plan = OffloadPlan.of(PIPELINE, SEED, mixed_choices(SAMPLES))
    whole = stream(TAR, plan, 1)
    assert stream(TAR, plan, 1) == whole
    assert stream(TAR, plan, 0) != whole
    lengths = {start: len(stream(TAR, plan, 1, start)) for start in (1, 16, 35, 36)}
    for start, length in lengths.items():
        assert stream(TAR, plan, 1, start) == whole[-length:]
    assert lengths[36] == 1024
    with pytest.raises(RefusedError, match="has 36 samples, so it cannot be read from 37 on"):
        stream(TAR, plan, 1, 37)


def test_every_16th_sample_says_where_it_begins_in_the_source() -> None:
    plan = OffloadPlan.of(PIPELINE, SEED, mixed_choices(SAMPLES))
    found = [entry for entry, _ in read_entries(URL, io.BytesIO(stream(TAR, plan, 0)))]
    offsets = {
        n: int(e.pax_headers[OFFSET_HEADER]) for n, e in enumerate(found) if OFFSET_HEADER in e.pax_headers
    }
    assert list(offsets) == [0, 16, 32]
    for number, offset in offsets.items():
        rest = [s["__key__"] for s in read_shard(URL, io.BytesIO(TAR[offset:]))]
        assert rest == list(SAMPLES)[number:]


def test_no_more_is_read_than_may_be_ahead() -> None:
    begun: list[str] = []

    def transform(sample, headers):
        begun.append(sample["__key__"])
        return futures[len(begun) - 1]

    futures: list[Future[bytes]] = [Future() for _ in SAMPLES]
    for future in futures[1:]:
        future.set_result(bytes(1000))
    tar = transformed_shard(read_entries(URL, io.BytesIO(TAR)), 0, transform, Ahead(30, 5000))
    # the first sample is sent when it is done, and counts as it is stored until then
    threading.Timer(0.3, lambda: futures[0].set_result(bytes(1000))).start()
    next(tar)
    stored = sum(map(len, SAMPLES["0000"].values()))
    assert len(begun) == 2 + (5000 - stored) // 1000
    tar.close()


@pytest.mark.parametrize(
    "members",
    [
        {"image.op9.npy": b"", "cls": b"1"},
        {"image.op2.npy": b"", "image.op3.npy": b"", "cls": b"1"},
        {"label.op2.json": b"1", "jpg": photo(0)},
        {"image.op2.jpg": photo(0), "cls": b"1"},
    ],
)
def test_members_that_no_operations_of_the_pipeline_leave_are_refused(members: dict[str, bytes]) -> None:
    with pytest.raises(BadSampleError, match="are not the values after the first operations"):
        MixedPipeline(PIPELINE, SEED).run({"__key__": "a", "__url__": URL, **members}, SEED, 0)


def test_pickled_values_are_not_loaded() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    sample = {"__key__": "a", "__url__": URL, "image.op2.npy": file.getvalue(), "cls": b"1"}
    with pytest.raises(BadSampleError, match="Python objects"):
        MixedPipeline(PIPELINE, SEED).run(sample, SEED, 0)


def test_a_value_that_a_codec_cannot_hold_is_refused() -> None:
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "png", transparency=(1, 2, 3))
    plan = OffloadPlan.of(PIPELINE, SEED, {"a": Choice(1, "webp")})
    with pytest.raises(BadSampleError, match="codec webp cannot hold an image with transparency"):
        Transformer(PIPELINE, plan)({"__key__": "a", "__url__": URL, "png": file.getvalue(), "cls": b"1"}, 0)


def test_the_server_imports_neither_torch_nor_hivemind() -> None:
    code = (
        "import io, sys\n"
        "from cloud.storage.samples import read_shard\n"
        "import cloud.storage.client, experiments.offload.server, experiments.offload.worker\n"
        "from experiments.offload.mixed import Transformer\n"
        "from experiments.offload.plan import Choice, OffloadPlan\n"
        "from experiments.pipeline.load import load_pipeline\n"
        "pipeline = load_pipeline('imagenet', {'size': 16})\n"
        "run = Transformer(pipeline, OffloadPlan.of(pipeline, 7, {'a': Choice(2)}))\n"
        "for sample in read_shard('s3://b/k', sys.stdin.buffer): run(sample, 0)\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=make_tar({"a": SAMPLES["0000"]}), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not {"torch", "hivemind", "webdataset", "ray", "transformers"} & set(done.stdout.decode().split())


def test_a_stream_says_that_it_lives_while_a_sample_is_not_ready(monkeypatch):
    monkeypatch.setattr(shard_stream, "KEEP_ALIVE_S", 0.01)
    tar = make_tar(samples(3))
    futures = [Future(), Future(), Future()]
    given = iter(futures)
    pieces = shard_stream.transformed_shard(
        read_entries(URL, io.BytesIO(tar)),
        0,
        lambda _sample, _headers: next(given),
        shard_stream.Ahead(4, 1 << 20),
    )
    found = [next(pieces), next(pieces)]
    assert found == [shard_stream.KEEP_ALIVE] * 2
    for future, (key, members) in zip(futures, samples(3).items(), strict=True):
        future.set_result(shard_stream.sample_bytes(Record(key, members), {}))
    sent = b"".join([*found, *pieces])
    assert [sample["__key__"] for sample in read_shard(URL, io.BytesIO(sent))] == list(samples(3))


def test_another_seed_than_the_plans_is_refused() -> None:
    with pytest.raises(PlanError, match="seed 7, and the run has seed 8"):
        MixedPipeline(PIPELINE, SEED).run({"__key__": "a", "__url__": URL, **SAMPLES["0000"]}, SEED + 1, 0)
