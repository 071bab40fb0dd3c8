"""scikit-learn's two photos, cropped, turned and noised: JPEGs with the sizes of OpenImages' files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, cast

from cloud.datasets.in_order import in_order
from cloud.storage.shards import HELDOUT, TRAIN, Record

LONG_SIDE = 1024
SHORT_SIDE = 768
MEDIAN_BYTES = 255_000
SIGMA = 0.70
CLASSES = tuple(
    f"{photo}, turned by {turn * 90} degrees" for photo in ("temple", "flower") for turn in range(4)
)

_TOLERANCE = 0.05  # of the size
_NOISE = (
    2.0,
    90.0,
)  # of the pixels' 255 levels: always, and at most, where the best quality gives too few bytes
_BEST = 99


def photo_records(train: int, heldout: int, *, seed: int = 0) -> Iterator[Record]:
    """Yield `train` and then `heldout` samples with the members `jpg` (1024 x 768, or turned) and `cls`.

    The number of bytes is lognormal with median 255 kB and sigma 0.70, as measured for OpenImages. Held-out crops come
    from the right quarter of the photos, which no training crop touches. A sample depends on the seed, its split and
    its number only.
    """
    for split, count in ((TRAIN, train), (HELDOUT, heldout)):
        yield from in_order(lambda number, split=split: _record(split, number, seed), range(count))


def photos_made(train: int, heldout: int, seed: int) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on."""
    return {
        "dataset": "photos",
        "train": train,
        "heldout": heldout,
        "seed": seed,
        "classes": list(CLASSES),
        "scikit-learn": version("scikit-learn"),
        "pillow": version("pillow"),
    }


@cache
def _photos() -> tuple[Any, ...]:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    loaded = cast(Any, load_sample_images())
    return tuple(Image.fromarray(image) for image in loaded["images"])


def _record(split: str, number: int, seed: int) -> Record:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng((seed, 0 if split == TRAIN else 1, number))
    label = int(rng.integers(len(CLASSES)))
    photo = _photos()[label // 4]
    left, right = (0.0, 0.75) if split == TRAIN else (0.75, 1.0)
    width = rng.uniform(0.5, 1) * (right - left) * photo.width
    height = min(width * SHORT_SIDE / LONG_SIDE, photo.height)
    x = left * photo.width + rng.uniform(0, (right - left) * photo.width - width)
    y = rng.uniform(0, photo.height - height)
    size = (LONG_SIDE, SHORT_SIDE)
    crop = photo.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
    if label % 4:
        crop = crop.rotate(90 * (label % 4), expand=True)
    wanted = MEDIAN_BYTES * np.exp(SIGMA * rng.standard_normal())
    noise = rng.standard_normal((crop.height, crop.width, 3), dtype=np.float32)
    jpeg = _of_size(np.asarray(crop, dtype=np.float32), noise, wanted)
    key = f"{number:08d}" if split == TRAIN else f"heldout-{number:08d}"
    return Record(key, {"jpg": jpeg, "cls": str(label).encode()}, split)


def _of_size(pixels: Any, noise: Any, wanted_bytes: float) -> bytes:
    """Encode with the quality, and if need be the noise, that gives about `wanted_bytes`."""
    import numpy as np
    from PIL import Image

    def encode(level: float, quality: int) -> bytes:
        target = io.BytesIO()
        noisy = np.clip(pixels + noise * np.float32(level), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(target, "jpeg", quality=quality)
        return target.getvalue()

    low, high = _NOISE
    worst, best = 1, _BEST
    while worst < best:  # the best quality that gives too few bytes, or the worst
        quality = (worst + best + 1) // 2
        jpeg = encode(low, quality)
        if abs(len(jpeg) / wanted_bytes - 1) <= _TOLERANCE:
            return jpeg
        worst, best = (quality, best) if len(jpeg) < wanted_bytes else (worst, quality - 1)
    jpeg = encode(low, worst)
    for _ in range(8):
        if abs(len(jpeg) / wanted_bytes - 1) <= _TOLERANCE:
            break
        level = (low + high) / 2
        jpeg = encode(level, worst)
        low, high = (level, high) if len(jpeg) < wanted_bytes else (low, level)
    return jpeg
