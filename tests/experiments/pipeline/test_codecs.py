"""Codecs give back exactly what they got, or refuse it."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from experiments.pipeline.codecs import CODECS, DEFAULT_CODEC, KINDS, is_kind

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")
VALUES = {"bytes": b"", "text": "", "number": 0.5, "image": Image.new("L", (1, 1)), "array": np.zeros(2)}


def there_and_back(codec, value):
    data = CODECS[codec].encode(value)
    assert isinstance(data, bytes)
    return CODECS[codec].decode(data)


def test_every_kind_has_a_default_codec_of_its_own_kind():
    assert set(DEFAULT_CODEC) == set(KINDS)
    assert all(CODECS[name].kind == kind for kind, name in DEFAULT_CODEC.items())


@given(st.binary())
def test_bytes(value):
    assert there_and_back("raw", value) == value


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_text_with_any_code_point(value):
    assert there_and_back("utf-8", value) == value


@given(st.integers() | st.floats(allow_nan=False))
def test_numbers_keep_value_and_type(value):
    back = there_and_back("json", value)
    assert type(back) is type(value)
    assert back == value
    assert math.copysign(1, back) == math.copysign(1, value)


def test_not_a_number_stays_one():
    assert math.isnan(there_and_back("json", math.nan))


@given(
    npst.arrays(
        npst.scalar_dtypes(),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_arrays_keep_dtype_shape_and_bytes(value):
    back = there_and_back("npy", value)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert back.tobytes() == value.tobytes()


def test_an_array_of_objects_is_refused():
    with pytest.raises(ValueError, match="allow_pickle"):
        CODECS["npy"].encode(np.array([{}], dtype=object))


@st.composite
def images(draw, modes=MODES):
    mode = draw(st.sampled_from(modes))
    size = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    needed = len(Image.new(mode, size).tobytes())
    data = draw(st.binary(min_size=needed, max_size=needed))
    image = Image.frombytes(mode, size, data)
    if mode in ("P", "PA"):
        palette = draw(st.sampled_from(["RGB", "RGBA"]))
        image.putpalette(draw(st.binary(min_size=4 * 256, max_size=4 * 256))[: len(palette) * 256], palette)
    if mode == "P":
        transparency = draw(st.none() | st.integers(0, 255) | st.binary(min_size=1, max_size=256))
        if transparency is not None:
            image.info["transparency"] = transparency
    return image


@given(images())
def test_images_keep_mode_size_pixels_and_colours(value):
    before = value.tobytes()
    back = there_and_back("pixels", value)
    assert (back.mode, back.size, back.tobytes()) == (value.mode, value.size, before)
    assert back.info.get("transparency") == value.info.get("transparency")
    if value.mode in ("P", "PA"):
        assert back.palette.mode == value.palette.mode
        assert back.getpalette("RGBA") == value.getpalette("RGBA")
        assert back.convert("RGBA").tobytes() == value.convert("RGBA").tobytes()


def test_a_transparent_colour_is_kept():
    image = Image.new("RGB", (2, 2), (1, 2, 3))
    image.info["transparency"] = (1, 2, 3)
    back = there_and_back("pixels", image)
    assert back.info["transparency"] == (1, 2, 3)
    assert back.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@given(images())
def test_png_keeps_an_image_or_refuses_its_mode(value):
    if value.mode not in ("1", "L", "LA", "RGB", "RGBA", "I;16"):
        with pytest.raises(ValueError, match=f"mode {value.mode} without loss; use pixels"):
            CODECS["png"].encode(value)
        return
    back = there_and_back("png", value)
    assert (back.mode, back.size, back.tobytes()) == (value.mode, value.size, value.tobytes())


@given(images(("RGB", "RGB", *MODES)))
def test_webp_keeps_an_rgb_image_or_refuses_its_mode(value):
    if value.mode != "RGB":
        with pytest.raises(ValueError, match=f"mode {value.mode} without loss; use pixels"):
            CODECS["webp"].encode(value)
        return
    data = CODECS["webp"].encode(value)
    assert data[:4] + data[8:12] == b"RIFFWEBP"
    back = CODECS["webp"].decode(data)
    assert (back.mode, back.size, back.tobytes()) == (value.mode, value.size, value.tobytes())


def test_webp_refuses_a_side_that_it_cannot_hold():
    assert there_and_back("webp", Image.new("RGB", (16_383, 1), (1, 2, 3))).size == (16_383, 1)
    with pytest.raises(
        ValueError, match="image of 1 x 16384 pixels, only sides up to 16383; use pixels or png"
    ):
        CODECS["webp"].encode(Image.new("RGB", (1, 16_384)))


def test_an_array_whose_bytes_are_not_there_is_refused():
    data = CODECS["npy"].encode(np.zeros((4, 5)))
    with pytest.raises(ValueError, match="it has 159 bytes of values, and its header says 160"):
        CODECS["npy"].decode(data[:-1])


def test_an_image_read_from_a_paletted_png_is_kept(tmp_path):
    image = Image.frombytes("RGB", (4, 4), bytes(range(48))).quantize(8)
    image.save(tmp_path / "a.png", transparency=3)
    with Image.open(tmp_path / "a.png") as read:
        back = there_and_back("pixels", read)
        assert read.mode == "P"
        assert back.convert("RGBA").tobytes() == read.convert("RGBA").tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_of_its_own_kind_only(kind):
    assert {other for other, value in VALUES.items() if is_kind(kind, value)} == {kind}


@pytest.mark.parametrize("value", [None, np.int64(1), bytearray(b"a"), [1.0], np.float32(1)])
def test_other_types_are_of_no_kind(value):
    assert not any(is_kind(kind, value) for kind in KINDS)


def test_floats_are_stored_to_the_last_bit():
    value = struct.unpack("<d", bytes.fromhex("9a9999999999b93f"))[0]
    assert struct.pack("<d", there_and_back("json", value)).hex() == "9a9999999999b93f"
