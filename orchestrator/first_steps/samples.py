"""Samples for a trial: from the experiment's store, or generated as the embedded store of a local run would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from cloud.storage.shards import HELDOUT, TRAIN, Record
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.launch.secret_values import OWN_SECRET

OpenShard = Callable[[str], BinaryIO]

_KEYS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
_SILENT_S = 15.0  # without a byte from the store, after which a trial gives up


def samples_of(dataset: str, folder: Path, *, train: int, heldout: int, seed: int) -> dict[str, Path]:
    """Write the first samples of an embedded store's data set as one shard a split; returns the shards by split.

    `train`, `heldout`: numbers of samples; the store's first shard begins with the same ones. Digits have a fixed number
    of held-out samples. Raises DataSourceError, ValueError for an unknown data set.
    """
    if dataset == "digits":
        from cloud.storage.digits import write_shards

        made = write_shards(folder, 1, samples_per_shard=train, seed=seed)
        return {TRAIN: folder / made.train[0], HELDOUT: folder / made.heldout[0]}
    return _written(_records(dataset, train, heldout, seed), folder, {TRAIN: train, HELDOUT: heldout})


def open_store(spec: ExperimentSpec) -> OpenShard:
    """Return how to open a shard in the experiment's store, with the values of its secrets or boto3's credentials."""
    from cloud.storage.client import ClientPerProcess
    from cloud.storage.opener import RetryPolicy, ShardOpener

    keys = {
        option: os.environ.get(OWN_SECRET + name) for option, name in _KEYS.items() if name in spec.secrets
    }
    client = ClientPerProcess(spec.data.endpoint, region=spec.data.region, **keys)
    return ShardOpener(client, endpoint=spec.data.endpoint, retry=RetryPolicy(deadline_s=_SILENT_S)).open


def open_generated(spec: ExperimentSpec, folder: Path, *, train: int, heldout: int) -> OpenShard:
    """Generate the first samples of the experiment's data set; returns how to open its first shards."""
    files = samples_of(spec.data.dataset, folder, train=train, heldout=heldout, seed=spec.seed)
    places = {first_shard(spec.data.shards): files[TRAIN]}
    if spec.data.heldout:
        places[first_shard(spec.data.heldout)] = files[HELDOUT]
    return lambda url: places[url].open("rb")


def first_shard(pattern: str) -> str:
    """Return the URL of the first shard of a pattern."""
    return shard_urls(pattern)[0]


def _records(dataset: str, train: int, heldout: int, seed: int) -> Iterable[Record]:
    match dataset:
        case "glyphs":
            from cloud.datasets.glyphs import glyph_records

            return glyph_records(train, heldout, seed=seed)
        case "photos":
            from cloud.datasets.photos import photo_records

            return photo_records(train, heldout, seed=seed)
        case "speech":
            from cloud.datasets.speech import speech_records

            return speech_records(train, heldout, seed=seed)
        case "stdlib":
            from cloud.datasets.stdlib import stdlib_records

            records = list(stdlib_records(seed=seed))
            return [
                record
                for split, count in ((TRAIN, train), (HELDOUT, heldout))
                for record in islice((r for r in records if r.split == split), count)
            ]
    raise ValueError(f"no data set is named {dataset!r}")


def _written(records: Iterable[Record], folder: Path, most: dict[str, int]) -> dict[str, Path]:
    from cloud.storage.shards import ShardWriter

    writer = ShardWriter(folder, max_samples=max(most.values()))
    shards = [shard for record in records for shard in writer.write(record)]
    shards += writer.close()
    return {shard.split: shard.path for shard in shards if shard.path is not None}
