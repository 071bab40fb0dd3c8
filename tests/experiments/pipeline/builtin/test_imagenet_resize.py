"""imagenet-resize: shapes and types after each operation, the crop's range, bad images."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from experiments.pipeline.builtin import imagenet_resize
from experiments.pipeline.errors import BadSampleError, BadValueError, PipelineError
from experiments.pipeline.pipeline import apply
from experiments.pipeline.randomness import Randomness


def a_file(width=60, height=45, kind="png", seed=0) -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, kind)
    return file.getvalue()


def a_sample(data: bytes, member="png", key="0007"):
    return {"__key__": key, "__url__": "s3://b/t.tar", member: data, "cls": b"3"}


@pytest.mark.parametrize(("member", "kind"), [("png", "png"), ("jpg", "jpeg"), ("JPEG", "jpeg")])
def test_shapes_and_types_after_each_operation(member, kind):
    pipeline = imagenet_resize.pipeline(24, 30)
    item = pipeline.start(a_sample(a_file(60, 45, kind), member))
    for op in pipeline.ops[:3]:
        item[op.output] = apply(op, item[op.field], Randomness(0, 0, "k"))
        if op.name == "decode":
            assert (item["image"].mode, item["image"].size) == ("RGB", (60, 45))
        elif op.name == "resize":
            assert (item["image"].mode, item["image"].size) == ("RGB", (40, 30))
        else:
            assert (item["image"].shape, item["image"].dtype) == ((3, 30, 40), np.float32)
    assert [op.name for op in pipeline.ops] == ["decode", "resize", "center", "crop", "label"]
    assert [op.gives for op in pipeline.ops] == ["image", "image", "array", "array", "number"]
    assert [op.random for op in pipeline.ops] == [False, False, False, True, False]
    item = pipeline.run(a_sample(a_file(60, 45, kind), member), 0, 0)
    assert (item["image"].shape, item["image"].dtype, item["label"]) == ((3, 24, 24), np.float32, 3)
    assert item["image"].flags.c_contiguous


def test_centred_levels_by_hand():
    image = Image.fromarray(np.array([[[0, 51, 255], [102, 153, 204]]], np.uint8))
    expected = np.array([[[0, 102]], [[51, 153]], [[255, 204]]]) / 127.5 - 1
    np.testing.assert_allclose(imagenet_resize.center(image), expected, rtol=0, atol=1e-7)


def naive_crop(array, top, left, size):
    return np.array(
        [[[row[x] for x in range(left, left + size)] for row in c[top : top + size]] for c in array]
    )


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 5), st.integers(0, 10**6))
def test_a_crop_is_a_part_of_the_image(size, higher, wider, key):
    array = np.arange(3 * (size + higher) * (size + wider)).reshape(3, size + higher, size + wider)
    found = imagenet_resize.random_crop(array, Randomness(0, 0, str(key)).generator("crop"), size)
    top, left = divmod(int(found[0, 0, 0]), size + wider)
    assert found.tolist() == naive_crop(array, top, left, size).tolist()


def test_every_place_is_cropped():
    array = np.arange(12.0).reshape(1, 3, 4)
    found = {
        float(imagenet_resize.random_crop(array, Randomness(0, 0, str(n)).generator("crop"), 2)[0, 0, 0])
        for n in range(200)
    }
    assert found == {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "operation decode: the image is empty"),
        (b"<html>", "operation decode: the image is in no format that Pillow knows"),
        (a_file()[:300], "operation decode: the image cannot be decoded"),
        (a_file(kind="jpeg")[:300], "operation decode: the image cannot be decoded"),
    ],
)
def test_a_bad_image_names_shard_and_key(data, sentence):
    with pytest.raises(BadSampleError, match=f"^s3://b/t.tar: sample 0007, {sentence}.*; correct"):
        imagenet_resize.pipeline(24, 30).run(a_sample(data), 0, 0)


def test_a_stored_image_that_is_too_small_is_a_bad_value():
    with pytest.raises(BadValueError, match="has 30 x 20 pixels, too few for a crop of 24 x 24"):
        imagenet_resize.random_crop(np.zeros((3, 20, 30)), Randomness(0, 0, "k").generator("crop"), 24)


@pytest.mark.parametrize(("size", "resize"), [(0, 10), (11, 10)])
def test_settings_out_of_range_are_refused(size, resize):
    with pytest.raises(PipelineError, match=f"size is {size} and resize 10; size must be 1 to resize"):
        imagenet_resize.pipeline(size, resize)
