"""What a launch reads from the experiment's object store: the size of a task's samples, and files of its settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from cloud.targets import TARGETS
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.launch.obstacles import ObstacleCode
from orchestrator.launch.rent_checks import rent_obstacles
from orchestrator.launch.store_client import store_client, store_keys


def with_measured_samples(
    spec: ExperimentSpec, on: str, environ: Mapping[str, str] = os.environ
) -> ExperimentSpec:
    """Return the experiment with `data.bytes_per_sample` of the first shard, if it has a task and the key is not given.

    Unchanged if the store cannot be read from here, which the checks before a launch explain.
    """
    data = spec.data
    if spec.task is None or data.bytes_per_sample is not None or data.private:
        return spec
    rented = TARGETS[on].rents
    if not data.endpoint and not rented:  # the embedded store, which is empty yet
        return spec
    if rented and any(o.code is ObstacleCode.STORE_UNREACHABLE for o in rent_obstacles(spec)):
        return spec
    found = _measured(spec, environ)
    if found is None:
        return spec
    return spec.model_copy(update={"data": data.model_copy(update={"bytes_per_sample": round(found, 1)})})


def fetch(spec: ExperimentSpec, url: str, file: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Copy an object of the experiment's store to a file. Raises StorageError, BadUrlError, OSError."""
    from cloud.storage.client import storage_errors
    from cloud.storage.url import S3Url

    place, endpoint = S3Url.parse(url), spec.data.endpoint
    with storage_errors(endpoint, place.bucket, place.key):
        client = store_client(spec, store_keys(spec, environ), attempts=1)
        stored = client.get_object(Bucket=place.bucket, Key=place.key)["Body"]
        with stored, file.open("wb") as copy:
            shutil.copyfileobj(stored, copy, 1 << 20)


def _measured(spec: ExperimentSpec, environ: Mapping[str, str]) -> float | None:
    from botocore.exceptions import BotoCoreError

    from cloud.storage.errors import StorageError
    from cloud.storage.sample_size import bytes_per_sample

    try:
        client = store_client(spec, store_keys(spec, environ), attempts=1)
        return bytes_per_sample(shard_urls(spec.data.shards)[0], client, endpoint=spec.data.endpoint)
    except (StorageError, BotoCoreError, OSError):
        return None
