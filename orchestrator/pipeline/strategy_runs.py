"""Run one strategy of a pipeline: store its first operations, read, and deliver batches, each in timed windows."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

from analysis.pipeline.extrapolate import tar_bytes
from cloud.storage.cache import ShardCache
from cloud.storage.client import storage_errors
from cloud.storage.counter import ByteCounter
from cloud.storage.errors import StorageError
from cloud.storage.link import Link, linked
from cloud.storage.opener import ShardOpener
from cloud.storage.publish import list_objects
from cloud.storage.samples import Sample, SampleReader, read_shard
from cloud.storage.shards import Record
from cloud.storage.url import S3Url
from experiments.peer.training.bad_samples import LeftOut
from experiments.peer.training.decoding import Decoder, Workers
from experiments.peer.training.loader import TaskSource
from experiments.pipeline.errors import BadSampleError
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.store_shards import store_prefix
from experiments.pipeline.stored import Prefix, StoredCodec
from metrics.stats import Estimate, ratio_interval
from orchestrator.errors import OrchError
from orchestrator.pipeline.client_cpu import cpu_s
from orchestrator.pipeline.good_samples import bad_samples, of_good
from orchestrator.pipeline.memory_cache import MemoryCache
from orchestrator.pipeline.opened import OpenInput

_READ_WINDOW_S = 0.2  # at least, and at least one pass
_DELIVERY_WINDOW_S = 0.5
_SPARE_BYTES = 64 * 1024**2  # that stay free on the cache's disk


class ProfileError(OrchError):
    """A strategy cannot be measured."""


@dataclass(frozen=True)
class Windows:
    """Timed windows one after the other: samples, wall-clock seconds and CPU seconds of each."""

    samples: tuple[int, ...]
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    @property
    def rate_sps(self) -> Estimate:
        """Samples per second with its interval over the windows."""
        return cast(Estimate, ratio_interval(self.samples, self.wall_s))

    @property
    def cpu_s_per_sample(self) -> Estimate:
        """CPU seconds a sample with its interval over the windows."""
        return cast(Estimate, ratio_interval(self.cpu_s, self.samples))


class _TimedPrefix(Prefix):
    """A prefix that notes what each record took; one value a stored sample."""

    def __init__(self, pipeline: Pipeline, ops: int, codec: StoredCodec) -> None:
        super().__init__(pipeline, ops, codec)
        # The base class is frozen. `spent_s`: of all samples, those that cannot be stored included.
        self.__dict__.update(wall_s=[], used_cpu_s=[], sizes_bytes=[], spent_s=0.0)

    def record(self, sample: Sample) -> Record:
        noted = self.__dict__
        wall_s, used_s = time.perf_counter(), time.process_time()
        try:
            found = super().record(sample)
        finally:
            noted["spent_s"] += time.perf_counter() - wall_s
        noted["wall_s"].append(time.perf_counter() - wall_s)
        noted["used_cpu_s"].append(time.process_time() - used_s)
        noted["sizes_bytes"].append(tar_bytes([len(data) for data in found.members.values()]))
        return found


@dataclass(frozen=True)
class StoredPrefix:
    """What storing a prefix took; one value a stored sample, and one a shard for saving."""

    shards: tuple[str, ...]
    stored_bytes: int  # of all shards
    sample_bytes: tuple[int, ...]
    offline_s: tuple[float, ...]
    offline_cpu_s: tuple[float, ...]
    shard_samples: tuple[int, ...]
    save_s: tuple[float, ...]
    bad_samples: int  # that were left out


@dataclass(frozen=True)
class Delivery:
    """T4 of a strategy."""

    windows: Windows
    later_wire_bytes: float  # a sample
    cached_bytes: float  # a sample
    bad_samples: int  # that were left out


def opener(opened: OpenInput, link: Link | None, cache: ShardCache | None = None) -> ShardOpener:
    """A new opener of the input's store, with a counter of its own."""
    client = opened.client if link is None else linked(opened.client, link)
    return ShardOpener(client, endpoint=opened.endpoint, cache=cache, counter=ByteCounter())


def store(
    opened: OpenInput,
    split: int,
    codec: StoredCodec,
    shards: Sequence[str],
    to_url: str,
    folder: Path,
    tell: Callable[[LeftOut], None] = lambda _: None,
) -> StoredPrefix:
    """Store the values after the first `split` operations. The sources are read beforehand, so reading is not timed.

    Bad samples are left out with data.bad_samples: skip; `tell` gets their count. Raises BadSampleError,
    PipelineError, StorageError, OSError.
    """
    prefix = _TimedPrefix(opened.pipeline, split, codec)
    sources = {url: opened.opener.open(url).read() for url in shards}
    noted = prefix.__dict__
    marks = [(time.perf_counter(), 0, 0.0)]
    bad = bad_samples(opened, tell)

    def left_out(error: BadSampleError) -> None:
        if noted["wall_s"]:
            bad.good()
        bad.bad(error)

    index = store_prefix(
        prefix,
        shards,
        cast(ShardOpener, _InMemory(sources)),
        opened.client(),
        to_url,
        folder=folder,
        endpoint=opened.endpoint,
        bad_sample=left_out,
        progress=lambda _done, _all: marks.append(
            (time.perf_counter(), len(noted["wall_s"]), noted["spent_s"])
        ),
    )
    bad.report()
    counts: list[int] = []
    save_s: list[float] = []
    for (began_s, first, spent_s), (ended_s, end, spent_then_s) in pairwise(marks):
        counts.append(end - first)
        save_s.append(ended_s - began_s - (spent_then_s - spent_s))
    return StoredPrefix(
        shards=tuple(f"{to_url}/{shard.name}" for shard in index.shards),
        stored_bytes=sum(shard.size_bytes for shard in index.shards),
        sample_bytes=tuple(noted["sizes_bytes"]),
        offline_s=tuple(noted["wall_s"]),
        offline_cpu_s=tuple(noted["used_cpu_s"]),
        shard_samples=tuple(counts),
        save_s=tuple(save_s),
        bad_samples=bad.count,
    )


def record_bytes(opened: OpenInput, split: int, codec: StoredCodec, samples: Sequence[Sample]) -> list[int]:
    """Bytes of each good sample in a shard of this strategy, without storing it. Raises BadSampleError, PipelineError."""
    if not split or not samples:
        return [source_bytes(sample) for sample in samples]
    prefix = Prefix(opened.pipeline, split, codec)
    records = of_good(samples, prefix.record, bad_samples(opened))
    return [tar_bytes([len(value) for value in record.members.values()]) for record in records]


def source_bytes(sample: Sample) -> int:
    """Bytes of a source sample in its shard."""
    return tar_bytes([len(data) for name, data in sample.items() if not name.startswith("__")])


def delete(opened: OpenInput, to_url: str) -> None:
    """Delete the objects directly under a temporary prefix. Raises StorageError."""
    client, place = opened.client(), S3Url.parse(to_url).join("")
    for name in list_objects(client, to_url, endpoint=opened.endpoint):
        with storage_errors(opened.endpoint, place.bucket, place.key + name):
            client.delete_object(Bucket=place.bucket, Key=place.key + name)


@contextmanager
def temporary_prefix(opened: OpenInput, to_url: str, left: Callable[[str], None]) -> Iterator[None]:
    """Delete what lies under a prefix at the end of the block.

    If that fails or is interrupted twice, `left` gets a sentence with the prefix and the command that deletes it; a
    StorageError of the deletion is not raised, so that it does not hide an error of the block. An embedded store needs no
    sentence, because it is removed as a whole.
    """
    try:
        yield
    finally:
        reason = "interrupted"
        try:
            try:
                delete(opened, to_url)
            except KeyboardInterrupt:
                delete(opened, to_url)
                reason = ""
                raise
            reason = ""
        except StorageError as error:
            reason = str(error)
        finally:
            if reason and not opened.generated:
                at = f" --endpoint-url {opened.endpoint}" if opened.endpoint else ""
                left(
                    f"stored values are left under {to_url} ({reason}); delete them with: "
                    f"aws s3 rm --recursive {shlex.quote(to_url + '/')}{at}"
                )


def samples_of(opened: OpenInput, shards: Sequence[str]) -> Iterator[Sample]:
    """The samples of shards in order. Raises StorageError."""
    for url in shards:
        yield from read_shard(url, opened.opener.open(url))


def wire_bytes(opened: OpenInput, shards: Sequence[str]) -> int:
    """Bytes that come from the store when the shards are read once, with no operations."""
    counted = opener(opened, None)
    for url in shards:
        for _ in read_shard(url, counted.open(url)):
            pass
    return counted.counter.read().network_bytes


def read_rate(
    opened: OpenInput,
    shards: Sequence[str],
    samples: int,
    streams: int,
    windows: int,
    link: Link | None,
    least_s: float = _READ_WINDOW_S,
) -> Estimate:
    """Samples per second that the shards are read with, with no operations (T1, T3).

    Each window has `samples` and takes `least_s` at least.
    """
    reader = SampleReader(shards, opener(opened, link).open, streams=streams)
    try:
        return _timed(lambda: (next(reader), 1)[1], samples, windows, least_s).rate_sps
    finally:
        reader.close()


def preprocess_rate(
    opened: OpenInput,
    shards: Sequence[str],
    samples: int,
    workers: Workers,
    windows: int,
    tell: Callable[[LeftOut], None],
) -> Estimate:
    """Samples per second in batches that are made of shards in memory; each window is a batch of `samples` good ones.

    Bad samples are left out with data.bad_samples: skip; `tell` gets their count. Raises BadSampleError, PipelineError,
    StorageError, WorkerEndedError.
    """
    sources = {url: opened.opener.open(url).read() for url in shards}
    source = TaskSource(
        shards,
        _InMemory(sources).open,
        Decoder(opened.pipeline, opened.seed),
        opened.collate,
        workers,
        bad_samples(opened, tell),
    )

    def next_batch() -> int:
        source.next_batch(samples)
        return samples

    with closing(source):
        return _timed(next_batch, samples, windows, 0.0).rate_sps


def deliver(
    opened: OpenInput,
    pipeline: Pipeline,
    shards: Sequence[str],
    samples: int,
    *,
    streams: int,
    workers: Workers,
    cache: str,
    windows: int,
    link: Link | None,
    folder: Path,
    tell: Callable[[LeftOut], None] = lambda _: None,
) -> Delivery:
    """Deliver batches to a consumer that does nothing (T4), after a first pass that is not timed.

    Bad samples are left out with data.bad_samples: skip; `tell` gets their count. Raises ProfileError, BadSampleError,
    PipelineError, StorageError, WorkerEndedError.
    """
    batch = max(1, min(opened.batch_size, samples))
    bad = bad_samples(opened, tell)
    if cache == "memory":
        found = opener(opened, link)
        everything = (sample for url in shards for sample in read_shard(url, found.open(url)))
        kept = MemoryCache(pipeline, everything, opened.seed, bad)
        items = kept.items(workers)

        def from_memory() -> int:
            opened.collate([next(items) for _ in range(batch)])
            return batch

        try:
            taken = _timed(from_memory, samples, windows, _DELIVERY_WINDOW_S)
        finally:
            cast(Any, items).close()
        bad.report()
        return Delivery(taken, 0.0, kept.size_bytes / len(kept), bad.count)
    disk = _disk_cache(opened, shards, folder) if cache == "disk" else None
    try:
        found = opener(opened, link, disk)
        source = TaskSource(
            shards,
            found.open,
            Decoder(pipeline, opened.seed),
            opened.collate,
            workers,
            bad,
            streams=streams,
        )
        with closing(source):

            def next_batch() -> int:
                source.next_batch(batch)
                return batch

            counted: list[int] = []

            def at_window() -> None:
                counted.append(found.counter.read().network_bytes)
                if disk is not None:
                    drop_page_cache(disk.folder)

            taken = _timed(next_batch, samples, windows, _DELIVERY_WINDOW_S, at_window)
            later = (counted[-1] - counted[0]) / sum(taken.samples)
        if disk is not None and disk.off_because:
            raise ProfileError(f"the disk cache stopped ({disk.off_because}); free space, or leave out disk")
        cached = 0.0 if disk is None else disk.used_bytes / max(1, samples - bad.count)
        return Delivery(taken, later, cached, bad.count)
    finally:
        if disk is not None:
            disk.close()
            shutil.rmtree(folder, ignore_errors=True)


def drop_page_cache(folder: Path) -> None:
    """Have the kernel forget the contents of the files in a folder."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class _InMemory:
    sources: dict[str, bytes] = field(repr=False)

    def open(self, url: str) -> BinaryIO:
        return io.BytesIO(self.sources[url])


def _timed(
    step: Callable[[], int],
    samples: int,
    windows: int,
    least_s: float,
    at_window: Callable[[], None] = lambda: None,
) -> Windows:
    """Take `windows` windows, each of a whole pass of `samples` and `least_s` at least, after two passes untimed.

    The second of these fills what is read ahead. `step` returns the number of samples that it took.
    """
    taken = 0
    while taken < 2 * samples:
        taken += step()
    counts: list[int] = []
    wall: list[float] = []
    used: list[float] = []
    at_window()
    for _ in range(windows):
        count, began_s, began_cpu_s = 0, time.perf_counter(), cpu_s()
        while count < samples or time.perf_counter() - began_s < least_s:
            count += step()
        counts.append(count)
        wall.append(time.perf_counter() - began_s)
        used.append(cpu_s() - began_cpu_s)
        at_window()
    return Windows(tuple(counts), tuple(wall), tuple(used))


def _disk_cache(opened: OpenInput, shards: Sequence[str], folder: Path) -> ShardCache:
    client, needed = opened.client(), 0
    for url in shards:
        at = S3Url.parse(url)
        with storage_errors(opened.endpoint, at.bucket, at.key):
            needed += int(client.head_object(Bucket=at.bucket, Key=at.key)["ContentLength"])
    folder.mkdir(parents=True)
    free = shutil.disk_usage(folder).free
    if needed + _SPARE_BYTES > free:
        raise ProfileError(
            f"a disk cache of {needed / 1e6:.0f} MB does not fit on the disk of {folder}, which has {free / 1e6:.0f} MB "
            "free; free space, set TMPDIR, or leave out disk"
        )
    return ShardCache(folder, needed + _SPARE_BYTES)
