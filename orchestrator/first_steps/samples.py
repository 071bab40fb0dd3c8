"""Samples for a trial: from the experiment's store, or generated as the embedded store of a local run would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from cloud.datasets.generate import SIZES, generate, heldout_of
from cloud.storage.shards import HELDOUT, TRAIN, MaxSamples, Record
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.launch.local_store import dataset_of
from orchestrator.launch.store_client import client_options, store_keys

OpenShard = Callable[[str], BinaryIO]

_SILENT_S = 15.0  # without a byte from the store, after which a trial gives up


def samples_of(dataset: str, folder: Path, *, train: int, heldout: int, seed: int) -> dict[str, Path]:
    """Write the first samples of an embedded store's data set as one shard a split; returns the shards by split.

    `train`, `heldout`: numbers of samples; the store's first shard begins with the same ones. Digits have a fixed number
    of held-out samples. Raises DataSourceError, KeyError for an unknown data set.
    """
    if dataset == "digits":
        from cloud.storage.digits import write_shards

        made = write_shards(folder, 1, samples_per_shard=train, seed=seed)
        return {TRAIN: folder / made.train[0], HELDOUT: folder / made.heldout[0]}
    return _written(_first(dataset, {TRAIN: train, HELDOUT: heldout}, seed), folder, max(train, heldout))


def open_store(spec: ExperimentSpec) -> OpenShard:
    """Return how to open a shard in the experiment's store, with the values of its secrets or boto3's credentials."""
    from cloud.storage.client import ClientPerProcess
    from cloud.storage.opener import RetryPolicy, ShardOpener

    options = client_options(spec, store_keys(spec, os.environ))
    client = ClientPerProcess(spec.data.endpoint, **options)
    return ShardOpener(client, endpoint=spec.data.endpoint, retry=RetryPolicy(deadline_s=_SILENT_S)).open


def open_generated(spec: ExperimentSpec, folder: Path, *, train: int, heldout: int) -> OpenShard:
    """Generate the first samples of the experiment's data set; returns how to open its first shards."""
    files = samples_of(spec.data.dataset, folder, train=train, heldout=heldout, seed=spec.seed)
    places = {first_shard(spec.data.shards): files[TRAIN]}
    if spec.data.heldout:
        places[first_shard(spec.data.heldout)] = files[HELDOUT]
    return lambda url: places[url].open("rb")


def open_generated_heldout(spec: ExperimentSpec, folder: Path) -> OpenShard:
    """Generate all held-out samples of the embedded store's data set; returns how to open their shard.

    Raises UsageError for names of shards that the embedded store does not have, DataSourceError.
    """
    arguments = dataset_of(spec)[1]
    dataset, seed, url = spec.data.dataset, spec.seed, f"{arguments['to_url']}/heldout-000000.tar"
    if dataset == "digits":
        from cloud.storage.digits import write_shards

        path = folder / write_shards(folder, 1, samples_per_shard=1, seed=seed).heldout[0]
    else:
        count = heldout_of(arguments["shards"] * SIZES[dataset].samples_per_shard)
        records = generate(dataset, 0, count, seed=seed).records
        path = _written((r for r in records if r.split == HELDOUT), folder, lambda split, number: 0)[HELDOUT]
    return lambda asked: {url: path}[asked].open("rb")


def first_shard(pattern: str) -> str:
    """Return the URL of the first shard of a pattern."""
    return shard_urls(pattern)[0]


def _first(dataset: str, most: Mapping[str, int], seed: int) -> Iterator[Record]:
    """The first records of each split, at most `most` of them. stdlib and pages have more."""
    left = dict(most)
    for record in generate(dataset, most[TRAIN], most[HELDOUT], seed=seed).records:
        if left[record.split]:
            left[record.split] -= 1
            yield record


def _written(records: Iterable[Record], folder: Path, most: MaxSamples) -> dict[str, Path]:
    from cloud.storage.shards import ShardWriter

    writer = ShardWriter(folder, max_samples=most)
    shards = [shard for record in records for shard in writer.write(record)]
    shards += writer.close()
    return {shard.split: shard.path for shard in shards if shard.path is not None}
