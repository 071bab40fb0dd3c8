"""scikit-learn's two photos, cropped, turned and noised: JPEGs with the sizes of OpenImages' or ImageNet's files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, cast

from cloud.datasets.in_order import in_order
from cloud.storage.shards import HELDOUT, TRAIN, Record


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sides in pixels, and the lognormal distribution of the files' bytes."""

    long_side: int
    short_side: int
    median_bytes: int
    sigma: float


OPENIMAGES = "openimages"
SIZES = {
    # as measured for OpenImages
    OPENIMAGES: Sizes(1024, 768, 255_000, 0.70),
    # ILSVRC 2012's training images: most have a side of 500, and 1,281,167 files in 147.9e9 bytes have a mean of 115 kB.
    # Their spread was not measured: sigma is a choice, and the median follows from it and the mean.
    "imagenet": Sizes(500, 375, 102_000, 0.50),
}
"""The sizes that photos can have, by the data set that has them."""

CLASSES = tuple(
    f"{photo}, turned by {turn * 90} degrees" for photo in ("temple", "flower") for turn in range(4)
)

_TOLERANCE = 0.05  # of the size
_NOISE = (
    2.0,
    90.0,
)  # of the pixels' 255 levels: always, and at most, where the best quality gives too few bytes
_BEST = 99


def photo_records(train: int, heldout: int, *, seed: int = 0, sizes: str = OPENIMAGES) -> Iterator[Record]:
    """Yield `train` and then `heldout` samples with the members `jpg` (1024 x 768, or turned) and `cls`.

    `sizes` is a key of SIZES; imagenet: 500 x 375, or turned. The number of bytes is lognormal. Held-out crops come from
    the right quarter of the photos, which no training crop touches. A sample depends on the seed, its split, its number
    and `sizes` only.
    """
    wanted = SIZES[sizes]
    for split, count in ((TRAIN, train), (HELDOUT, heldout)):
        yield from in_order(lambda number, split=split: _record(split, number, seed, wanted), range(count))


def photos_made(train: int, heldout: int, seed: int, sizes: str = OPENIMAGES) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on."""
    return {
        "dataset": "photos",
        **(
            {} if sizes == OPENIMAGES else {"sizes": sizes}
        ),  # sets of before there were sizes stay the same data set
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


def _record(split: str, number: int, seed: int, sizes: Sizes) -> Record:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng((seed, 0 if split == TRAIN else 1, number))
    label = int(rng.integers(len(CLASSES)))
    photo = _photos()[label // 4]
    left, right = (0.0, 0.75) if split == TRAIN else (0.75, 1.0)
    width = rng.uniform(0.5, 1) * (right - left) * photo.width
    height = min(width * sizes.short_side / sizes.long_side, photo.height)
    x = left * photo.width + rng.uniform(0, (right - left) * photo.width - width)
    y = rng.uniform(0, photo.height - height)
    size = (sizes.long_side, sizes.short_side)
    crop = photo.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
    if label % 4:
        crop = crop.rotate(90 * (label % 4), expand=True)
    wanted = sizes.median_bytes * np.exp(sizes.sigma * rng.standard_normal())
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
