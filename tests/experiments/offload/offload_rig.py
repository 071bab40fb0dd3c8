"""Photos in shards, plans for them, and the tensors that come out."""

from __future__ import annotations

import io
from concurrent.futures import Future
from hashlib import sha256

import numpy as np
from PIL import Image

from cloud.storage.samples import read_entries, read_shard
from experiments.offload.certificate import Certificate, server_context
from experiments.offload.cores import Cores
from experiments.offload.job import Job
from experiments.offload.mixed import MixedPipeline, Transformer
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.reader import OffloadReader, Patience, ServerAddress
from experiments.offload.server import Limits, OffloadServer
from experiments.offload.shard_stream import Ahead, sample_bytes, transformed_shard
from experiments.pipeline.builtin import imagenet
from tests.cloud.storage_fakes import FakeStore, make_tar, opener

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

    def transform(sample, headers):
        done = Future()
        done.set_result(sample_bytes(transformer(sample, pass_number), headers))
        return done

    entries = read_entries(url, io.BytesIO(tar))
    return b"".join(transformed_shard(entries, start, transform, Ahead(4, 1 << 20)))


def read_bytes(tar: bytes):
    return lambda _pass_number=0: read_shard(URL, io.BytesIO(tar))


TOKEN = "0123456789abcdef"
CERTIFICATE = Certificate.make()


def reader_of(
    server_port: int, its_plan: OffloadPlan, store, patience=None, reports=None, **changes
) -> OffloadReader:
    """A reader that reads from a FakeStore when the server at this port is lost."""
    at = {
        "host": "127.0.0.1",
        "port": server_port,
        "certificate": CERTIFICATE.certificate,
        "fingerprint": PIPELINE.fingerprint(),
        "plan": its_plan.sha256,
        "token": TOKEN,
        **changes,
    }
    report = (lambda _sentence: None) if reports is None else reports.append
    return OffloadReader(ServerAddress(**at), opener(store), patience=patience or QUICK, report=report)


QUICK = Patience(connect_s=2, silent_s=1, sample_s=3, retry_s=0.1)


class Server:
    """A server in this process with real worker processes, over a FakeStore."""

    def __init__(
        self, folder, plan: OffloadPlan, store, *, cores=1, port=0, job=None, sample_s=20.0, **limits
    ):
        self.reports: list[str] = []
        self.job = job or Job(
            "imagenet", plan, frozenset(store.urls), {"a-0": TOKEN}, {"size": 16, "classes": 10}
        )
        self.cores = Cores(
            self.job, cores, limit_s=sample_s, memory_bytes=1 << 30, report=self.reports.append
        )
        try:
            self.http = OffloadServer(
                self.job,
                self.cores,
                opener(store),
                server_context(*CERTIFICATE.write(folder)),
                host="127.0.0.1",
                port=port,
                limits=Limits(**limits),
                report=self.reports.append,
            )
        except BaseException:
            self.cores.close()
            raise
        self.port = self.http.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.stop()
        self.cores.close()


class Store(FakeStore):
    """Shards of photos by URL."""

    def __init__(self, shards: int, count: int):
        names = [f"train-{n:06d}.tar" for n in range(shards)]
        self.samples = {f"s3://photos/{name}": samples(count, n * count) for n, name in enumerate(names)}
        super().__init__({name: make_tar(self.samples[f"s3://photos/{name}"]) for name in names})

    @property
    def urls(self) -> list[str]:
        return list(self.samples)

    @property
    def keys(self) -> list[str]:
        return [key for shard in self.samples.values() for key in shard]

    def as_stored(self, passes=(0, 1)) -> list[tuple[str, str]]:
        """(key, SHA-256) of all tensors of these passes, without a server."""
        return digests(self._read, PIPELINE, passes)

    def _read(self, _pass_number):
        for url in self.urls:
            yield from read_shard(url, opener(self).open(url))


def through(reader: OffloadReader, store: Store, passes=(0, 1)) -> list[tuple[str, str]]:
    """(key, SHA-256) of all tensors of these passes, read by the reader."""
    return digests(
        lambda n: (s for url in store.urls for s in reader.read(url, n)),
        MixedPipeline(PIPELINE, SEED),
        passes,
    )
