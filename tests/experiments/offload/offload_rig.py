"""Photos in shards, plans for them, and the tensors that come out."""

from __future__ import annotations

import io
from concurrent.futures import Future
from hashlib import sha256

import numpy as np
from PIL import Image

from cloud.storage.samples import read_entries, read_shard
from experiments.offload.mixed import Transformer
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.shard_stream import Ahead, transformed_shard
from experiments.pipeline.builtin import imagenet

PIPELINE = imagenet.pipeline(size=16, classes=10)
SEED = 7
URL = "s3://photos/train-000000.tar"


def photo(seed: int) -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).resize((48, 36)).save(file, "jpeg")
    return file.getvalue()


def samples(count: int, first: int = 0) -> dict[str, dict[str, bytes]]:
    return {
        f"{n:04d}": {"jpg": photo(n), "cls": b"%d" % (n % 10), "json": b"{}"}
        for n in range(first, first + count)
    }


def mixed_choices(keys) -> dict[str, Choice]:
    """Every number of operations, and every codec where it fits, one after the other."""
    kinds = [Choice(k) for k in range(7)] + [Choice(k, c) for k in (1, 2, 3) for c in ("png", "webp", "gzip")]
    return {key: kinds[n % len(kinds)] for n, key in enumerate(keys)}


def digests(read, pipeline, passes=(0, 1), seed=SEED) -> list[tuple[str, str]]:
    """(key, SHA-256 of the tensor and label) of the samples that `read(pass_number)` yields."""
    found = []
    for pass_number in passes:
        for sample in read(pass_number):
            item = pipeline.run(sample, seed, pass_number)
            data = item["image"].tobytes() + b"%d" % item["label"]
            found.append((sample["__key__"], sha256(data).hexdigest()))
    return found


def stream(tar: bytes, plan: OffloadPlan, pass_number: int, start: int = 0, url: str = URL) -> bytes:
    """The transformed shard, made in this process."""
    transformer = Transformer(PIPELINE, plan)

    def transform(sample):
        done = Future()
        done.set_result(transformer(sample, pass_number))
        return done

    entries = read_entries(url, io.BytesIO(tar))
    return b"".join(transformed_shard(entries, start, transform, Ahead(4, 1 << 20)))


def read_bytes(tar: bytes):
    return lambda _pass_number=0: read_shard(URL, io.BytesIO(tar))
