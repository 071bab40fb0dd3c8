"""Each sample's bytes and CPU seconds by operation, and what codecs make of it."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from PIL import Image

from cloud.storage.samples import Sample
from experiments.pipeline.builtin import digits, imagenet
from experiments.pipeline.errors import BadSampleError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import encode
from orchestrator.pipeline.offload import sample_steps
from orchestrator.pipeline.offload.sample_steps import places, steps_of

HERE = "tests.orchestrator.pipeline.test_sample_steps"


def photo(mode: str = "RGB", key: str = "a") -> Sample:
    pixels = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "jpeg")
    return {"__key__": key, "__url__": "s3://b/0.tar", "jpg": file.getvalue(), "cls": b"7", "txt": b"unused"}


class Clock:
    """CPU seconds of a thread that only `busy` uses."""

    now_s = 0.0


def busy(data: bytes) -> bytes:
    Clock.now_s += 0.02
    return data * 2


def idle(data: bytes) -> bytes:
    return data[:1]


def no_colours(data: bytes) -> Image.Image:
    return Image.new("L", (4, 5))


def test_bytes_are_payload_of_the_members_that_are_transformed():
    sample = photo()
    found = steps_of(imagenet.pipeline(), sample, 0, 0)
    assert found.key == "a"
    assert found.raw_bytes == len(sample["jpg"]) + 1
    image = (300 * 400 * 3, 150_528, 150_528, 602_112, 602_112)
    assert found.size_bytes == (*(size + 1 for size in image), 602_112 + 8)  # the label: b"7", then a number
    assert len(found.op_s) == 6
    assert all(seconds >= 0 for seconds in found.op_s)


def test_seconds_are_those_of_the_threads_cpu(monkeypatch: pytest.MonkeyPatch):
    assert sample_steps.thread_time is time.thread_time
    monkeypatch.setattr(sample_steps, "thread_time", lambda: Clock.now_s)
    pipeline = Pipeline(
        "busy",
        {"data": ("bin",), "other": ("txt",)},
        (
            Op("busy", f"{HERE}:busy", "data", "bytes", "bytes", into="more"),
            Op("idle", f"{HERE}:idle", "more", "bytes", "bytes"),
        ),
    )
    sample = {"__key__": "a", "__url__": "u", "bin": b"123", "txt": b"never read"}
    found = sample_steps.steps_of(pipeline, sample, 0, 0)
    assert (found.raw_bytes, found.size_bytes) == (3, (9, 4))  # the source is kept beside the result
    assert found.op_s == pytest.approx((0.02, 0.0))


def test_random_operations_do_what_they_do_in_the_given_pass():
    where = places(imagenet.pipeline(), ("zstd",))
    crops = [
        steps_of(imagenet.pipeline(), photo(), seed, pass_number, where).coded[1].size_bytes
        for seed, pass_number in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert crops[0] == crops[1]
    assert len(set(crops)) == 3


def test_a_codec_is_measured_where_it_may_apply():
    pipeline = imagenet.pipeline()
    where = places(pipeline, ("none", "webp", "zstd"))
    assert where == (*(("webp", k) for k in (1, 2, 3)), *(("zstd", k) for k in range(1, 7)))
    assert places(digits.pipeline(), ("webp", "png")) == ()
    found = steps_of(pipeline, photo(), 0, 0, where)
    image = Pipeline("first", pipeline.fields, pipeline.ops[:1]).run(photo(), 0, 0)["image"]
    assert found.coded[0].size_bytes == len(encode(image, "image", "webp")) + 1  # and the label as it is
    assert all(one.write_s > 0 and one.read_s > 0 and one.held for one in found.coded)


def test_a_sample_that_a_codec_cannot_hold_is_sent_without_it():
    pipeline = Pipeline(
        "grey", {"data": ("bin",)}, (Op("grey", f"{HERE}:no_colours", "data", "bytes", "image"),)
    )
    sample = {"__key__": "a", "__url__": "u", "bin": b"123"}
    [webp, png] = steps_of(pipeline, sample, 0, 0, places(pipeline, ("webp", "png"))).coded
    assert (webp.size_bytes, webp.write_s, webp.read_s, webp.held) == (20, 0.0, 0.0, False)
    assert png.held


def test_a_bad_sample_is_named():
    with pytest.raises(BadSampleError, match="sample a, operation decode"):
        steps_of(imagenet.pipeline(), {**photo(), "jpg": b"no image"}, 0, 0)
