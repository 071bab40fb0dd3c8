"""Codecs of the values between operations: how a value is stored or sent, without loss."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal["bytes", "text", "number", "image", "array"]
"""Kinds of values: bytes; str; int or float; PIL.Image.Image; numpy.ndarray."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Codec:
    """A lossless encoding of values of one kind."""

    name: str
    kind: Kind
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_array(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _encode_png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def _decode_png(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def _encode_pixels(image: Any) -> bytes:
    width, height = image.size
    return f"{image.mode} {width} {height}\n".encode() + image.tobytes()


def _decode_pixels(data: bytes) -> Any:
    from PIL import Image

    head, _, pixels = data.partition(b"\n")
    mode, width, height = head.decode().split()
    return Image.frombytes(mode, (int(width), int(height)), pixels)


CODECS = {
    codec.name: codec
    for codec in (
        Codec("raw", "bytes", bytes, bytes),
        Codec("utf-8", "text", str.encode, bytes.decode),
        Codec("json", "number", lambda number: json.dumps(number).encode(), json.loads),
        Codec("pixels", "image", _encode_pixels, _decode_pixels),
        Codec("png", "image", _encode_png, _decode_png),
        Codec("npy", "array", _encode_array, lambda data: np.load(io.BytesIO(data), allow_pickle=False)),
    )
}
"""All codecs by name."""

DEFAULT_CODEC: dict[Kind, str] = {
    "bytes": "raw",
    "text": "utf-8",
    "number": "json",
    "image": "pixels",
    "array": "npy",
}
"""The codec of a kind unless the operation names another."""
