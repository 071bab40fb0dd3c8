"""Codecs of the values between operations: how a value is stored or sent, without loss."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from cloud.storage.npy import read_npy

Kind = Literal["bytes", "text", "number", "image", "array"]
"""Kinds of values: bytes; str; int or float; PIL.Image.Image; numpy.ndarray."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_PNG_MODES = ("1", "L", "LA", "RGB", "RGBA", "I;16")  # those that a PNG holds without loss
_WEBP_SIDE = 16_383  # pixels that libwebp takes


def is_kind(kind: Kind, value: Any) -> bool:
    """Return whether a value is of a kind. A number is Python's own int or float, not numpy's int64."""
    match kind:
        case "bytes":
            return isinstance(value, bytes)
        case "text":
            return isinstance(value, str)
        case "number":
            return isinstance(value, int | float)
        case "image":
            from PIL import Image

            return isinstance(value, Image.Image)
        case "array":
            return isinstance(value, np.ndarray)


@dataclass(frozen=True, slots=True)
class Codec:
    """A lossless encoding of values of one kind. `encode` raises ValueError for a value that it cannot hold."""

    name: str
    kind: Kind
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_array(array: np.ndarray) -> bytes:
    try:  # of other names numpy writes format 3.0, which `read_npy` refuses
        str(np.lib.format.dtype_to_descr(array.dtype)).encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(
            "codec npy cannot hold an array with fields whose names are not Latin-1; rename them"
        ) from None
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _encode_png(image: Any) -> bytes:
    if image.mode not in _PNG_MODES:
        raise ValueError(
            f"codec png cannot hold an image of mode {image.mode} without loss; use pixels, or one of {', '.join(_PNG_MODES)}"
        )
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def _decode_file(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def _encode_webp(image: Any) -> bytes:
    if image.mode != "RGB":  # an image without colours, or with an alpha of 255 only, is read as RGB
        raise ValueError(
            f"codec webp cannot hold an image of mode {image.mode} without loss; use pixels, or convert it to RGB"
        )
    if max(image.size) > _WEBP_SIDE:
        raise ValueError(
            f"codec webp cannot hold an image of {image.size[0]} x {image.size[1]} pixels, only sides up to {_WEBP_SIDE}; "
            "use pixels or png"
        )
    file = io.BytesIO()
    image.save(file, "webp", lossless=True, method=0)
    return file.getvalue()


def _encode_pixels(image: Any) -> bytes:
    """Write mode, size, palette and transparency as a line of JSON, then the pixels as they lie in memory."""
    palette, transparency = image.palette, image.info.get("transparency")
    head = {
        "mode": image.mode,
        "size": image.size,
        "palette": [palette.mode, bytes(image.getpalette(palette.mode)).hex()] if palette else None,
        "transparency": transparency.hex() if isinstance(transparency, bytes) else transparency,
    }
    return json.dumps(head).encode() + b"\n" + image.tobytes()


def _decode_pixels(data: bytes) -> Any:
    from PIL import Image

    line, _, pixels = data.partition(b"\n")
    head = json.loads(line)
    image = Image.frombytes(head["mode"], tuple(head["size"]), pixels)
    if head["palette"] is not None:
        mode, colours = head["palette"]
        image.putpalette(bytes.fromhex(colours), mode)
    match head["transparency"]:
        case None:
            pass
        case str(alpha):
            image.info["transparency"] = bytes.fromhex(alpha)
        case list(colour):
            image.info["transparency"] = tuple(colour)
        case level:
            image.info["transparency"] = level
    return image


CODECS = {
    codec.name: codec
    for codec in (
        Codec("raw", "bytes", bytes, bytes),
        Codec(
            "utf-8",
            "text",
            lambda text: text.encode("utf-8", "surrogatepass"),
            lambda data: data.decode("utf-8", "surrogatepass"),
        ),
        Codec("json", "number", lambda number: json.dumps(number).encode(), json.loads),
        Codec("pixels", "image", _encode_pixels, _decode_pixels),
        Codec("png", "image", _encode_png, _decode_file),
        Codec("webp", "image", _encode_webp, _decode_file),
        Codec("npy", "array", _encode_array, read_npy),
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
