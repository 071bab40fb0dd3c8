"""Real handwritten digits (scikit-learn's 1797 images of 8 x 8 pixels) as WebDataset shards, augmented for volume."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cloud.storage.client import storage_errors
from cloud.storage.url import S3Url

if TYPE_CHECKING:
    import numpy as np

HELD_OUT_SHARE = 0.2  # share of the originals of each digit
SIDE = 8  # pixels
SHARDS, SAMPLES_PER_SHARD = 32, 512  # where none are given


@dataclass(frozen=True, slots=True)
class DigitsMade:
    """What was written: shard names in order, and total samples and bytes."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]
    train_samples: int
    heldout_samples: int
    size_bytes: int


def shard_name(split: str, index: int) -> str:
    """`train-000007.tar`; `split` is "train" or "heldout"."""
    return f"{split}-{index:06d}.tar"


def write_shards(
    folder: Path,
    shards: int = SHARDS,
    *,
    samples_per_shard: int = SAMPLES_PER_SHARD,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> DigitsMade:
    """Write `shards` train shards and one held-out shard to `folder`; the same arguments produce the same bytes.

    The held-out digits (one fifth, the same for every seed) are written unchanged and never used for train samples. Train
    samples cycle through the other digits, in a new order each time, rotated by up to 6 degrees, shifted by up to 0.3
    pixel, scaled by up to 5 %, and with noise of 2 % of the range; more would hide strokes that are one pixel wide.
    `progress` receives the name of each shard. Raises ValueError for counts below 1.
    """
    import numpy as np

    if shards < 1 or samples_per_shard < 1:
        raise ValueError(f"{shards} shards of {samples_per_shard} samples: both must be at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    images, labels, heldout = _originals()
    train_images, train_labels = images[~heldout], labels[~heldout]
    names: list[str] = []
    size = 0
    for index in range(shards):
        first = index * samples_per_shard
        chosen = _chosen(len(train_labels), first, samples_per_shard, seed)
        rng = np.random.default_rng((seed, 1, index))
        pixels = _augment(train_images[chosen], rng)
        names.append(shard_name("train", index))
        size += _write_tar(folder / names[-1], pixels, train_labels[chosen], first)
        if progress is not None:
            progress(names[-1])
    held_name = shard_name("heldout", 0)
    size += _write_tar(folder / held_name, images[heldout], labels[heldout], 0)
    if progress is not None:
        progress(held_name)
    return DigitsMade(tuple(names), (held_name,), shards * samples_per_shard, int(heldout.sum()), size)


def make_bucket(client: Any, bucket: str, *, endpoint: str = "") -> None:
    """Create the bucket unless it exists and is accessible. Raises StorageError."""
    from botocore.exceptions import ClientError

    with storage_errors(endpoint, bucket):
        try:
            client.create_bucket(Bucket=bucket)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise
            client.head_bucket(Bucket=bucket)  # it exists: check that it is accessible


def upload_shards(
    folder: Path,
    made: DigitsMade,
    to_url: str,
    client: Any,
    *,
    endpoint: str = "",
    progress: Callable[[str], None] | None = None,
) -> None:
    """Upload the shards to `to_url` (s3://bucket[/prefix]), creating the bucket. Raises StorageError."""
    place = S3Url.parse(to_url)
    make_bucket(client, place.bucket, endpoint=endpoint)
    for name in (*made.train, *made.heldout):
        url = place.join(name)
        with storage_errors(endpoint, url.bucket, url.key), (folder / name).open("rb") as body:
            client.put_object(Bucket=url.bucket, Key=url.key, Body=body, ContentType="application/x-tar")
        if progress is not None:
            progress(str(url))


def make_digits(
    shards: int,
    to_url: str,
    client: Any,
    *,
    folder: Path,
    samples_per_shard: int = SAMPLES_PER_SHARD,
    seed: int = 0,
    endpoint: str = "",
    progress: Callable[[str], None] | None = None,
) -> DigitsMade:
    """Run write_shards and upload_shards; the bucket is created first, so that a refusal is noticed at once."""
    make_bucket(client, S3Url.parse(to_url).bucket, endpoint=endpoint)
    made = write_shards(folder, shards, samples_per_shard=samples_per_shard, seed=seed)
    upload_shards(folder, made, to_url, client, endpoint=endpoint, progress=progress)
    return made


def _originals() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return float32[1797, 8, 8] pixels from 0 to 1, int labels, and a mask of the held-out ones."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = cast(Mapping[str, Any], load_digits())
    images = np.asarray(digits["images"], dtype=np.float32) / 16
    labels = np.asarray(digits["target"], dtype=np.int64)
    heldout = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        at = np.flatnonzero(labels == digit)
        # Spread over the whole set, since neighbouring images come from the same writer.
        heldout[at[:: round(1 / HELD_OUT_SHARE)]] = True
    return images, labels, heldout


def _chosen(originals: int, first: int, count: int, seed: int) -> np.ndarray:
    """Return the indices of the originals for samples first .. first + count - 1 of the whole data set."""
    import numpy as np

    at = np.arange(first, first + count)
    chosen = np.empty(count, dtype=np.int64)
    for turn in np.unique(at // originals):
        order = np.random.default_rng((seed, 0, int(turn))).permutation(originals)
        mine = at // originals == turn
        chosen[mine] = order[at[mine] % originals]
    return chosen


def _augment(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rotate, shift, scale (bilinear, 0 outside) and add noise; float32[n, 8, 8] in and out."""
    import numpy as np

    count = len(images)
    angle = np.radians(rng.uniform(-6, 6, count))[:, None, None]
    scale = rng.uniform(0.95, 1.05, count)[:, None, None]
    move_y, move_x = rng.uniform(-0.3, 0.3, (2, count, 1, 1))
    centre = (SIDE - 1) / 2
    y, x = np.mgrid[0:SIDE, 0:SIDE] - centre
    source_y = (np.cos(angle) * y - np.sin(angle) * x) / scale + centre - move_y
    source_x = (np.sin(angle) * y + np.cos(angle) * x) / scale + centre - move_x
    # One ring of zeros, so that clipped coordinates read the background.
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    source_y = np.clip(source_y + 1, 0, SIDE + 0.999)
    source_x = np.clip(source_x + 1, 0, SIDE + 0.999)
    low_y, low_x = source_y.astype(int), source_x.astype(int)
    part_y, part_x = source_y - low_y, source_x - low_x
    row = np.arange(count)[:, None, None]
    mixed = (
        padded[row, low_y, low_x] * (1 - part_y) * (1 - part_x)
        + padded[row, low_y + 1, low_x] * part_y * (1 - part_x)
        + padded[row, low_y, low_x + 1] * (1 - part_y) * part_x
        + padded[row, low_y + 1, low_x + 1] * part_y * part_x
    )
    return np.clip(mixed + rng.normal(0, 0.02, mixed.shape), 0, 1).astype(np.float32)


def _write_tar(path: Path, pixels: np.ndarray, labels: np.ndarray, first_key: int) -> int:
    """Write members %08d.png and %08d.cls; return the file's size in bytes."""
    from webdataset.writer import TarWriter

    with (
        path.open("wb") as file,
        TarWriter(file, encoder=False, user="", group="", mode=0o644, mtime=0) as tar,
    ):
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True), start=first_key):
            # one member each: TarWriter would sort them, and earlier versions wrote the png first
            for extension, data in _files(image, int(label)):
                tar.write({"__key__": f"{number:08d}", extension: data})
    return path.stat().st_size


def _files(image: np.ndarray, label: int) -> Iterator[tuple[str, bytes]]:
    import numpy as np
    from PIL import Image

    png = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(png, "png")
    yield "png", png.getvalue()
    yield "cls", str(label).encode()
