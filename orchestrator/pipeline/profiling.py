"""Measure a pipeline's strategies (PRESTO: Isenko et al., SIGMOD 2022) over a target's own data."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice, product
from typing import Literal, cast

from analysis.pipeline.extrapolate import extrapolate
from analysis.pipeline.profile_records import Extrapolation, Measurement, Profile, Strategy
from cloud.datasets.generate import SIZES
from cloud.storage.client import storage_errors
from cloud.storage.errors import BucketMissingError, StorageError, StoreRefusedError
from cloud.storage.link import Link
from cloud.storage.publish import read_index
from cloud.storage.samples import Sample
from cloud.storage.shards import TRAIN
from cloud.storage.url import S3Url
from experiments.peer.training.bad_samples import LeftOut
from experiments.peer.training.decoding import Workers
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.store_shards import stored_pipeline
from experiments.pipeline.stored import STORED_CODECS, StoredCodec, storable
from metrics.stats import Estimate, ratio_interval
from orchestrator.errors import UsageError
from orchestrator.pipeline.client_cpu import available_bytes, total_bytes
from orchestrator.pipeline.good_samples import bad_samples, of_good
from orchestrator.pipeline.host_watch import HostWatch
from orchestrator.pipeline.memory_cache import deterministic, item_bytes
from orchestrator.pipeline.opened import OpenInput, open_input
from orchestrator.pipeline.strategy_runs import (
    ProfileError,
    StoredPrefix,
    deliver,
    read_rate,
    record_bytes,
    samples_of,
    source_bytes,
    store,
    temporary_prefix,
    wire_bytes,
)
from orchestrator.pipeline.target import STANDALONE, Target

_ESTIMATED_FROM = 8  # samples, for what the items take in memory


@dataclass(frozen=True)
class Wanted:
    """Which strategies to measure, and how. `splits` None: all that may be stored, and none."""

    splits: tuple[int, ...] | None = None
    codecs: tuple[str, ...] = ("none",)
    streams: tuple[int, ...] = (1,)
    workers: tuple[int, ...] = (1,)
    kind: str = "thread"
    caches: tuple[str, ...] = ("none",)
    samples: int = 128
    windows: int = 5
    link: Link | None = None
    to_url: str = ""


def strategies(pipeline: Pipeline, wanted: Wanted) -> list[Strategy]:
    """The full product of what is wanted; codecs apply to stored values only. Raises UsageError."""
    most = storable(pipeline)
    splits = tuple(range(most + 1)) if wanted.splits is None else wanted.splits
    if wrong := [split for split in splits if not 0 <= split <= most]:
        why = (
            f"operation {pipeline.ops[most].name} is random, and a stored random operation is random no more"
            if most < len(pipeline.ops)
            else f"it has {most}"
        )
        raise UsageError(
            f"--splits {wrong[0]}: pipeline {pipeline.name} may store its first {most} operations at most ({why}); "
            f"choose from 0 to {most}"
        )
    if unknown := [codec for codec in wanted.codecs if codec not in STORED_CODECS]:
        raise UsageError(f"--codecs {unknown[0]}: not a codec; choose from {', '.join(STORED_CODECS)}")
    found = [
        Strategy(split, codec if split else "none", streams, workers, wanted.kind, cache)
        for split, codec, streams, workers, cache in product(
            splits, wanted.codecs, wanted.streams, wanted.workers, wanted.caches
        )
    ]
    return list(dict.fromkeys(found))


def profile(
    target: Target,
    wanted: Wanted,
    say: Callable[[str], None],
    step: Callable[[str], None],
    left: Callable[[str], None] | None = None,
    host: HostWatch | None = None,
) -> Profile:
    """Measure the strategies one after the other. `say` gets lines of text, `step` what is done now.

    `host` watches the machine meanwhile, for who wants its samples.

    Stored prefixes are temporary and are deleted from the store, also if this is interrupted. `left` gets a sentence about
    each one whose deletion fails (None: `say` gets it). Raises UsageError, ProfileError, PipelineError, BadSampleError,
    TaskError, StorageError, DataSourceError, OSError.
    """
    began_s, measured_at = time.monotonic(), datetime.now(UTC)
    if target.spec is not None and target.spec.data.stored:
        raise UsageError(
            f"{target.name}: data.stored is set, so its first operations cannot be measured; name the source shards and "
            "--set data.stored=false"
        )
    with (
        open_input(target, samples=2 * wanted.samples, progress=say) as opened,
        host or HostWatch() as watch,
    ):
        found = strategies(opened.pipeline, wanted)
        if not opened.generated and not wanted.to_url and any(one.split for one in found):
            raise UsageError(
                f"{opened.name}: stored values need a place in your store for as long as they are measured; name one with "
                "--to s3://bucket/prefix, or --splits 0"
            )
        if wanted.to_url and not opened.generated:
            _check_bucket(opened, wanted.to_url)
        say(f"{len(found)} runs")
        run = _Run(opened, wanted, say, step, left or say, watch)
        measurements = run.measure(found)
        return Profile(
            target=opened.name,
            pipeline=opened.pipeline.name,
            fingerprint=opened.pipeline.fingerprint(),
            ops=tuple(op.name for op in opened.pipeline.ops),
            storable=storable(opened.pipeline),
            machine=platform.node(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=total_bytes(),
            link_mbps=None if wanted.link is None else wanted.link.rate_mbps,
            link_rtt_ms=None if wanted.link is None else wanted.link.rtt_ms,
            generated=opened.generated,
            measured_at=measured_at.isoformat(timespec="seconds"),
            seconds=time.monotonic() - began_s,
            measurements=tuple(measurements),
            extrapolations=tuple(run.extrapolations.items()),
        )


class _Run:
    """The samples that are measured, and what is measured once for several strategies."""

    def __init__(
        self,
        opened: OpenInput,
        wanted: Wanted,
        say: Callable[[str], None],
        step: Callable[[str], None],
        left: Callable[[str], None],
        watch: HostWatch,
    ) -> None:
        self._opened, self._wanted, self._watch = opened, wanted, watch
        self._say, self._step, self._left = say, step, left
        self._told = False  # that there are bad samples
        self.extrapolations: dict[str, Extrapolation] = {}
        step("reading samples")
        self._shards, self._samples, rest = shards_with(opened, sorted(opened.shards), wanted.samples)
        if not self._samples:
            raise ProfileError(f"{opened.name}: its shards contain no samples; check data.shards")
        _, self._second, _ = shards_with(opened, rest, len(self._samples))
        self._total = _total_samples(opened)
        self._rates: dict[tuple[str, int], Estimate] = {}

    def measure(self, found: Sequence[Strategy]) -> list[Measurement]:
        """Measure all strategies; a stored prefix is kept only while its strategies are measured."""
        if any(one.cache == "memory" for one in found):
            self._check_memory()
        to_url = self._wanted.to_url.rstrip("/") or self._opened.shards[0].rpartition("/")[0]
        base = f"{to_url}/orch-profile-{secrets.token_hex(6)}"
        measured: dict[Strategy, Measurement] = {}
        for split, codec in dict.fromkeys((one.split, one.codec) for one in found):
            group = [one for one in found if (one.split, one.codec) == (split, codec)]
            if not split:
                self._group(group, None, measured, len(found))
                continue
            place = f"{base}-{split}-{codec}"
            folder = self._opened.folder / f"writing-{split}-{codec}"
            folder.mkdir()
            self._step(f"storing the first {split} operations with {codec}")
            with temporary_prefix(self._opened, place, self._left):
                stored = store(
                    self._opened, split, cast(StoredCodec, codec), self._shards, place, folder, self._tell
                )
                self._group(group, stored, measured, len(found))
        return [measured[one] for one in found]

    def _group(
        self,
        group: Sequence[Strategy],
        stored: StoredPrefix | None,
        measured: dict[Strategy, Measurement],
        of: int,
    ) -> None:
        """Measure the strategies of one split and codec."""
        opened = self._opened
        read = len(self._samples)
        count = read if stored is None else len(stored.sample_bytes)
        first = group[0]
        shards = self._shards if stored is None else stored.shards
        pipeline = (
            opened.pipeline
            if stored is None
            else stored_pipeline(opened.pipeline, shards, opened.opener.open)
        )
        wire, in_store = wire_bytes(opened, shards), _shard_bytes(opened, shards, stored)
        sizes = [source_bytes(sample) for sample in self._samples] if stored is None else stored.sample_bytes
        second = record_bytes(opened, first.split, cast(StoredCodec, first.codec), self._second)
        for one in group:
            if self._total is not None:
                offline = None if stored is None else stored.offline_s
                self.extrapolations[one.label] = extrapolate(self._total, sizes, offline, second)
            self._step(f"run {len(measured) + 1} of {of}: {one.label}")
            with self._watch.of(one.label):
                got = deliver(
                    opened,
                    pipeline,
                    shards,
                    count,
                    streams=one.streams,
                    workers=Workers(cast(Literal["thread", "process"], one.worker_kind), one.workers),
                    cache=one.cache,
                    windows=self._wanted.windows,
                    link=self._wanted.link,
                    folder=opened.folder / "cache",
                    tell=self._tell,
                )
            good = count - got.bad_samples
            if good < 1:
                raise ProfileError(
                    f"{one.label}: each of the {count} samples was bad in some pass over them; correct the operations"
                )
            measurement = Measurement(
                strategy=one,
                after=opened.pipeline.ops[one.split - 1].name if one.split else "",
                samples=read,
                bad_samples=read - good,
                stored_bytes=in_store / good,
                wire_bytes=wire / good,
                later_wire_bytes=wire / good if one.cache == "none" else got.later_wire_bytes,
                cached_bytes=got.cached_bytes,
                offline_s=None,
                offline_cpu_s=None,
                save_s=None,
                read_sps=self._read("source", self._shards, one.streams),
                write_sps=None,
                stored_read_sps=None,
                delivered_sps=got.windows.rate_sps,
                cpu_s=got.windows.cpu_s_per_sample,
                shards=len(shards),
                host=self._watch.loads[one.label],
            )
            if stored is not None:
                measurement = replace(
                    measurement,
                    offline_s=sum(stored.offline_s) / good,
                    offline_cpu_s=sum(stored.offline_cpu_s) / good,
                    save_s=sum(stored.save_s) / good,
                    write_sps=ratio_interval(stored.shard_samples, stored.save_s),
                    stored_read_sps=self._read(f"{one.split}-{one.codec}", shards, one.streams),
                )
            measured[one] = measurement

    def _read(self, name: str, shards: Sequence[str], streams: int) -> Estimate:
        if (name, streams) not in self._rates:
            self._rates[name, streams] = read_rate(
                self._opened, shards, len(self._samples), streams, self._wanted.windows, self._wanted.link
            )
        return self._rates[name, streams]

    def _tell(self, left_out: LeftOut) -> None:
        """Name the first bad sample, once."""
        if not self._told:
            self._told = True
            self._say(f"bad samples are left out; the first: {left_out.first.where}")

    def _check_memory(self) -> None:
        """Raises ProfileError if the items of the whole data set do not fit into the memory that is available."""
        first = deterministic(self._opened.pipeline)
        items = of_good(
            self._samples, lambda one: first.run(one, self._opened.seed, 0), bad_samples(self._opened)
        )
        sizes = [item_bytes(item) for item in islice(items, _ESTIMATED_FROM)]
        each = sum(sizes) / len(sizes)
        total = self._total or len(self._samples)
        check_memory(each, total, available_bytes())


def check_memory(item_bytes: float, samples: int, available: int) -> None:
    """Raises ProfileError if `samples` items of this size do not fit into the available memory."""
    if item_bytes * samples > available:
        raise ProfileError(
            f"a memory cache of {samples} items would take {item_bytes * samples / 1e9:.3g} GB ({item_bytes / 1e3:.3g} kB "
            f"each), and {available / 1e9:.3g} GB are available; leave out memory, or use --cache disk"
        )


def _check_bucket(opened: OpenInput, to_url: str) -> None:
    """Raises UsageError if the bucket does not exist: a bucket is not created for values that are deleted again."""
    bucket = S3Url.parse(to_url).bucket
    try:
        with storage_errors(opened.endpoint, bucket):
            opened.client().head_bucket(Bucket=bucket)
    except BucketMissingError as error:
        raise UsageError(
            f"--to {to_url}: there is no bucket {bucket}; create it, or name one that exists"
        ) from error
    except StoreRefusedError:
        pass  # some credentials may write objects but not look at the bucket; storing the first shard will tell


def shards_with(
    opened: OpenInput, shards: Sequence[str], samples: int
) -> tuple[list[str], list[Sample], Sequence[str]]:
    """The first shards with `samples` samples at least, those samples, and the other shards."""
    taken: list[str] = []
    found: list[Sample] = []
    for shard in shards:
        if len(found) >= samples:
            break
        taken.append(shard)
        found += samples_of(opened, [shard])
    return taken, found, shards[len(taken) :]


def _shard_bytes(opened: OpenInput, shards: Sequence[str], stored: StoredPrefix | None) -> int:
    if stored is not None:
        return stored.stored_bytes
    client, total = opened.client(), 0
    for url in map(S3Url.parse, shards):
        with storage_errors(opened.endpoint, url.bucket, url.key):
            total += int(client.head_object(Bucket=url.bucket, Key=url.key)["ContentLength"])
    return total


def _total_samples(opened: OpenInput) -> int | None:
    """Training samples of the whole data set: of the index in its store, or the usual number of a generated one."""
    if opened.generated:
        spec = opened.spec
        name = STANDALONE[opened.name].dataset if spec is None else spec.data.dataset
        size = SIZES.get(name)
        return None if size is None or size.shards is None else size.shards * size.samples_per_shard
    names = {url.rpartition("/")[2] for url in opened.shards}
    try:
        index = read_index(opened.client(), opened.shards[0].rpartition("/")[0], endpoint=opened.endpoint)
    except StorageError:  # shards need no index
        return None
    return None if index is None else sum(s.samples for s in index.of(TRAIN) if s.name in names) or None
