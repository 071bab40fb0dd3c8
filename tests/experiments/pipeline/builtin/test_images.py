"""Image pipelines: torchvision's definitions, the ranges of the augmentation, and bad images."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from experiments.pipeline.builtin import imagenet, images
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.randomness import Randomness


def noise(width, height, mode="RGB", seed=0):
    shape = (height, width) if mode == "L" else (height, width, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def file_of(image, kind="png"):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def a_sample(image=None, key="k", label=b"3", kind="png"):
    return {
        "__key__": key,
        "__url__": "s3://b/t.tar",
        kind: file_of(image or noise(60, 50), kind),
        "cls": label,
    }


def rng(key):
    return Randomness(0, 0, str(key)).generator("crop")


class Scripted:
    """Plays given numbers, and records the ranges that it is asked for."""

    def __init__(self, uniform=(), integers=()):
        self.uniforms, self.drawn = list(uniform), list(integers)
        self.asked = []

    def uniform(self, low, high):
        self.asked.append((low, high))
        return low + (high - low) * self.uniforms.pop(0)

    def integers(self, low, high):
        self.asked.append((low, high))
        return self.drawn.pop(0)


SIDES = st.integers(1, 300)


@given(SIDES, SIDES, st.integers(0, 10**6))
def test_the_random_part_lies_in_the_image(width, height, key):
    left, top, part_width, part_height = imagenet._random_part(
        width, height, rng(key), imagenet.SCALE, imagenet.RATIO
    )
    assert part_width > 0
    assert part_height > 0
    assert 0 <= left <= width - part_width
    assert 0 <= top <= height - part_height


def test_the_random_part_by_hand():
    """0.54 of 100 x 200 pixels as a square, 104 x 104, does not fit; then 0.08 of them with 4/3."""
    script = Scripted([0.5, 0.5, 0.0, 1.0], [12, 34])
    part = imagenet._random_part(100, 200, script, (0.08, 1.0), (3 / 4, 4 / 3))
    assert part == (34, 12, 46, 35)  # sqrt(1600 * 4/3), sqrt(1600 / (4/3))
    logs = (math.log(3 / 4), math.log(4 / 3))
    assert script.asked == [(0.08, 1.0), logs, (0.08, 1.0), logs, (0, 200 - 35 + 1), (0, 100 - 46 + 1)]


@pytest.mark.parametrize(
    ("size", "drawn", "part"),
    [
        ((300, 100), 0.0, (83, 0, 133, 100)),  # wider than 4/3: 133 of the width
        ((100, 300), 1.0, (0, 83, 100, 133)),  # narrower than 3/4
        ((100, 100), 0.0, (0, 0, 100, 100)),
    ],
)
def test_after_ten_attempts_the_centre_is_taken(size, drawn, part):
    script = Scripted([1.0, drawn] * 10)  # the whole area in a shape that never fits
    assert imagenet._random_part(*size, script, imagenet.SCALE, imagenet.RATIO) == part
    assert len(script.asked) == 20


def test_shares_are_uniform_and_ratios_log_uniform():
    parts = [imagenet._random_part(2000, 2000, rng(n), (0.08, 0.4), imagenet.RATIO) for n in range(3000)]
    shares = np.sort([w * h / 4e6 for _, _, w, h in parts])
    logs = np.sort([math.log(w / h) for _, _, w, h in parts])
    lefts = np.sort([left / (2000 - w) for left, _, w, _ in parts])
    even = (np.arange(3000) + 0.5) / 3000
    # Kolmogorov and Smirnov, 0.1 %
    assert np.abs((shares - 0.08) / 0.32 - even).max() < 0.036
    assert np.abs((logs / math.log(4 / 3) + 1) / 2 - even).max() < 0.036
    assert np.abs(lefts - even).max() < 0.036


def test_resizing_is_bilinear_and_averages_when_it_reduces():
    image, ratio = noise(123, 77), (123 / 77, 123 / 77)
    ours = np.asarray(
        imagenet.random_resized_crop(image, Scripted([1.0, 0.5], [0, 0]), 32, (1, 1), ratio), dtype=float
    )
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
    theirs = torch.nn.functional.interpolate(tensor, (32, 32), mode="bilinear", antialias=True)[0]
    assert np.abs(ours - theirs.permute(1, 2, 0).numpy()).max() <= 1


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((500, 375), (341, 256)),
        ((375, 500), (256, 341)),
        ((256, 256), (256, 256)),
        ((10, 1000), (256, 25600)),
    ],
)
def test_the_shorter_side_is_resized(size, expected):
    assert imagenet.resize(Image.new("RGB", size), 256).size == expected


def test_the_centre_is_cut_out_and_small_images_are_padded():
    levels = np.arange(7 * 6, dtype=np.uint8).reshape(7, 6) + 1
    image = Image.fromarray(levels)
    assert np.array_equal(imagenet.center_crop(image, 4), levels[2:6, 1:5])  # round(1.5) = 2: half to even
    assert np.array_equal(imagenet.center_crop(image, 5), levels[1:6, 0:5])  # round(0.5) = 0
    padded = np.zeros((9, 9), np.uint8)
    padded[1:8, 1:7] = levels  # 3 columns: 1 left, 2 right
    assert np.array_equal(imagenet.center_crop(image, 9), padded)


def test_flip_mirrors_half_of_the_images():
    image = noise(5, 3)
    results = [
        np.asarray(imagenet.flip(image, Randomness(0, 0, str(n)).generator("flip"))) for n in range(1000)
    ]
    mirrored = sum(np.array_equal(one, np.asarray(image)[:, ::-1]) for one in results)
    assert mirrored + sum(np.array_equal(one, np.asarray(image)) for one in results) == 1000
    assert 440 < mirrored < 560


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_to_tensor_and_normalize_are_torchs_numbers(mode):
    image = noise(9, 4, mode)
    array = imagenet.to_tensor(image)
    levels = torch.from_numpy(np.asarray(image).copy()).reshape(4, 9, -1).permute(2, 0, 1)
    expected = levels.contiguous().to(torch.float32).div(255)
    assert (array.dtype, array.shape) == (np.float32, tuple(expected.shape))
    assert array.flags.c_contiguous
    assert array.tobytes() == expected.numpy().tobytes()
    mean, std = imagenet.MEAN[: len(array)], imagenet.STD[: len(array)]
    normalized = expected.sub(torch.tensor(mean)[:, None, None]).div(torch.tensor(std)[:, None, None])
    assert imagenet.normalize(array, mean, std).tobytes() == normalized.numpy().tobytes()
    assert imagenet.normalize(array, mean, std).dtype == np.float32


def test_the_pipeline_of_training_images():
    pipeline = imagenet.pipeline(size=32)
    items = [pipeline.run(a_sample(key=str(n)), 0, 0) for n in range(4)]
    assert all(item["image"].shape == (3, 32, 32) and item["image"].dtype == np.float32 for item in items)
    assert all(item["label"] == 3 for item in items)
    assert len({item["image"].tobytes() for item in items}) == 4
    assert pipeline.run(a_sample(key="2"), 0, 0)["image"].tobytes() == items[2]["image"].tobytes()
    assert pipeline.run(a_sample(key="2"), 0, 1)["image"].tobytes() != items[2]["image"].tobytes()


def test_the_pipeline_of_heldout_images_has_nothing_random():
    pipeline = imagenet.heldout_pipeline()
    assert not any(op.random for op in pipeline.ops)
    image = noise(400, 300)
    item = pipeline.run(a_sample(image), 0, 0)
    resized = np.asarray(image.resize((341, 256), Image.Resampling.BILINEAR))[16:240, 58:282]
    mean, std = (np.array(values)[:, None, None] for values in (imagenet.MEAN, imagenet.STD))
    assert np.abs(item["image"] - (resized.transpose(2, 0, 1) / 255 - mean) / std).max() < 1e-5
    assert imagenet.heldout_pipeline(size=96).ops[1].parameters == {"size": 110}


@pytest.mark.parametrize("augment", ["none", "flip", "crop"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_glyphs(augment, channels):
    pipeline = images.pipeline(64, channels, augment, classes=62)
    glyph = noise(64, 64, "L")
    items = [pipeline.run(a_sample(glyph, str(n), b"61"), 0, 0) for n in range(8)]
    assert all(item["image"].shape == (channels, 64, 64) for item in items)
    different = len({item["image"].tobytes() for item in items})
    assert {"none": different == 1, "flip": different == 2, "crop": different > 5}[augment]
    held_out = images.heldout_pipeline(64, channels, classes=62).run(a_sample(glyph), 0, 0)
    assert np.array_equal(np.rint(held_out["image"][0] * 255), np.asarray(glyph))
    if augment == "none":
        assert held_out["image"].tobytes() == items[0]["image"].tobytes()


def test_shifted_images_are_filled_with_their_edge():
    image = noise(8, 8, "L")
    found = {images.shifted(image, rng(n), 1).tobytes() for n in range(100)}
    padded = np.pad(np.asarray(image), 1, mode="edge")
    assert found == {
        padded[top : top + 8, left : left + 8].tobytes() for top in range(3) for left in range(3)
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"png": b"GIF89"}, "operation decode: the image is in no format that Pillow knows"),
        ({"png": b""}, "operation decode: the image is empty"),
        (
            {"png": file_of(noise(60, 50), "jpeg")[:900]},
            r"operation decode: the image cannot be decoded \(.*truncated",
        ),
        ({"png": None}, "it has no member k.jpg or k.jpeg or k.JPEG or k.png or k.webp"),
        ({"cls": b"62"}, "operation label: the label 62 is out of range; it must be 0 to 61"),
        ({"cls": b"cat"}, "operation label: the label b'cat' is not a whole number"),
    ],
)
def test_a_bad_image_or_label_names_the_sample(change, sentence):
    sample = {key: value for key, value in {**a_sample(), **change}.items() if value is not None}
    with pytest.raises(BadSampleError, match=f"^s3://b/t.tar: sample k.*{sentence}"):
        images.pipeline(classes=62).run(sample, 0, 0)


def test_without_classes_any_number_from_zero_is_a_label():
    assert images.pipeline().run(a_sample(label=b"100000\n"), 0, 0)["label"] == 100000
    with pytest.raises(BadSampleError, match="the label -1 is out of range; it must be 0 or more"):
        images.pipeline().run(a_sample(label=b"-1"), 0, 0)


def test_images_with_alpha_palette_or_grey_levels_become_rgb():
    for mode in ("RGBA", "P", "L", "CMYK"):
        kind = "jpeg" if mode == "CMYK" else "png"
        sample = a_sample(noise(20, 20).convert(mode), kind=kind)
        assert images.pipeline(16).run(sample, 0, 0)["image"].shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: images.pipeline(channels=2), "cannot have 2 channels"),
        (lambda: images.pipeline(size=0), "size is 0; it must be at least 1"),
        (lambda: images.pipeline(augment="blur"), "augment is 'blur'; use none, flip or crop"),
        (lambda: images.pipeline(mean=(0.5,), std=(0.5,)), r"give 3 numbers for each"),
        (lambda: images.pipeline(channels=1, mean=(0.5,)), r"std is None; give 1 numbers for each"),
        (lambda: imagenet.pipeline(std=(0, 1, 1)), "std above 0"),
        (lambda: imagenet.pipeline(scale=(0, 1)), "must be ranges above 0"),
        (lambda: imagenet.pipeline(ratio=(2, 1)), "must be ranges above 0"),
        (lambda: imagenet.heldout_pipeline(resize=0), "size is 0"),
    ],
)
def test_a_wrong_setting_is_refused(build, sentence):
    with pytest.raises(PipelineError, match=sentence):
        build()


def test_every_setting_is_in_the_fingerprint():
    built = [
        imagenet.pipeline(),
        imagenet.pipeline(size=192),
        imagenet.pipeline(scale=(0.1, 1)),
        imagenet.pipeline(ratio=(0.5, 2)),
        imagenet.pipeline(mean=(0, 0, 0)),
        imagenet.pipeline(std=(1, 1, 1)),
        imagenet.pipeline(classes=1000),
        imagenet.heldout_pipeline(),
        imagenet.heldout_pipeline(resize=224),
        *(images.pipeline(augment=augment) for augment in ("none", "flip", "crop")),
        images.pipeline(32),
        images.pipeline(channels=1),
    ]
    assert len({pipeline.fingerprint() for pipeline in built}) == len(built)
    assert imagenet.pipeline().fingerprint() == built[0].fingerprint()
