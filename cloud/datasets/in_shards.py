"""A generated data set in a given number of shards, as an experiment's `data.shards` names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cloud.datasets.generate import SIZES, generate
from cloud.storage.errors import DataSourceError
from cloud.storage.publish import Index, Progress, publish
from cloud.storage.shards import HELDOUT, TRAIN, MaxSamples, Record


def store_in_shards(
    dataset: str,
    shards: int,
    to_url: str,
    client: Any,
    *,
    folder: Path,
    seed: int = 0,
    endpoint: str = "",
    progress: Callable[[Progress], None] | None = None,
) -> Index:
    """Store a data set of `generate` as `shards` training shards and one held-out shard.

    Shards have the usual number of samples of the data set. The texts of stdlib and the pages, whose number depends on
    Python's version, are distributed evenly. Raises DataSourceError, also if there are fewer texts than shards, and
    StorageError.
    """
    usual = SIZES[dataset]
    train = shards * usual.samples_per_shard
    found = generate(dataset, train, seed=seed)
    records: Iterable[Record] = found.records
    if usual.shards is None:
        records = list(found.records)
        train = sum(record.split == TRAIN for record in records)
        if train < shards:
            raise DataSourceError(
                f"{dataset} has {train} training samples, too few for {shards} shards; name at most {train} in data.shards"
            )
    return publish(
        records,
        to_url,
        client,
        folder=folder,
        made=found.made,
        max_samples=evenly(train, shards),
        endpoint=endpoint,
        replace=True,
        progress=progress,
    )


def evenly(train: int, shards: int) -> MaxSamples:
    """Return the number of samples of each shard: all held-out samples are in one, the others differ by at most 1."""
    least, more = divmod(train, shards)

    def samples(split: str, number: int) -> int:
        return 0 if split == HELDOUT else least + (number < more)

    return samples
