"""The digits' pipeline: today's bytes, and sentences that name shard, key and what is wrong."""

from __future__ import annotations

import io
from hashlib import sha256

import numpy as np
import pytest
from PIL import Image

from cloud.storage.digits import write_shards
from cloud.storage.samples import read_shard
from experiments.pipeline.builtin.digits import pipeline
from experiments.pipeline.errors import BadSampleError


def samples(folder, name):
    with (folder / name).open("rb") as file:
        return list(read_shard(f"s3://b/{name}", file))


def test_items_are_bit_for_bit_those_of_the_decoder_before_pipelines(tmp_path):
    """The hash was taken with the function that decoded digits before there were pipelines."""
    made = write_shards(tmp_path, 1, samples_per_shard=200)
    found = sha256()
    for name in (*made.train, *made.heldout):
        for sample in samples(tmp_path, name):
            item = pipeline().run(sample, 0, 0)
            assert item["image"].shape == (64,)
            found.update(item["image"].tobytes() + str(item["image"].dtype).encode() + bytes([item["label"]]))
    assert found.hexdigest() == "9a2e270c6239e31c940d9218f558a99cce59480a091e0e000adb831a3584dbce"


def a_png(mode="L", size=(8, 8)):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"png": b"nonsense"}, "operation image: the png is not a digit's image: it is no image at all"),
        ({"png": a_png("RGB")}, "operation image: the png is not a digit's image: RGB 8 x 8, not L 8 x 8"),
        (
            {"png": a_png(size=(9, 8))},
            "operation image: the png is not a digit's image: L 9 x 8, not L 8 x 8",
        ),
        ({"png": a_png()[:45]}, r"operation image: the png is not a digit's image \(.*"),
        ({"png": None}, "it has no member 00000000.png"),
        ({"cls": None}, "it has no member 00000000.cls"),
        ({"cls": b"x"}, "operation label: the label b'x' is not a whole number"),
        ({"cls": b"9" * 5000}, r"operation label: the label b'9{20}'\.\.\. is not a whole number"),
        ({"cls": b"10"}, "operation label: the label 10 is out of range; it must be 0 to 9"),
        ({"cls": b"-1"}, "operation label: the label -1 is out of range; it must be 0 to 9"),
    ],
)
def test_what_cannot_be_decoded_names_shard_key_and_reason(tmp_path, change, sentence):
    write_shards(tmp_path, 1, samples_per_shard=1)
    (sample,) = samples(tmp_path, "train-000000.tar")
    broken = {key: value for key, value in {**sample, **change}.items() if value is not None}
    with pytest.raises(
        BadSampleError, match=f"^s3://b/train-000000.tar: sample 00000000.*{sentence}; correct"
    ):
        pipeline().run(broken, 0, 0)


def test_pixels_are_scaled_to_one():
    levels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4 + 3
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "png")
    sample = {"__key__": "k", "__url__": "u", "png": file.getvalue(), "cls": b"7"}
    item = pipeline().run(sample, 0, 0)
    assert item["label"] == 7
    assert np.array_equal(item["image"], levels.reshape(64).astype(np.float32) / np.float32(255))
    assert item["image"][-1] == 1
