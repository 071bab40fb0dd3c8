"""What a launch reads from the experiment's object store: the size of a task's samples, and files of its settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloud.targets import TARGETS
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.launch.obstacles import ObstacleCode
from orchestrator.launch.rent_checks import STORE_KEYS, rent_obstacles
from orchestrator.launch.secret_values import OWN_SECRET

_CONNECT_S = 5.0


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
        stored = _client(spec, environ).get_object(Bucket=place.bucket, Key=place.key)["Body"]
        with stored, file.open("wb") as copy:
            shutil.copyfileobj(stored, copy, 1 << 20)


def _measured(spec: ExperimentSpec, environ: Mapping[str, str]) -> float | None:
    from botocore.exceptions import BotoCoreError

    from cloud.storage.errors import StorageError
    from cloud.storage.sample_size import bytes_per_sample

    try:
        client = _client(spec, environ)
        return bytes_per_sample(shard_urls(spec.data.shards)[0], client, endpoint=spec.data.endpoint)
    except (StorageError, BotoCoreError, OSError):
        return None


def _client(spec: ExperimentSpec, environ: Mapping[str, str]) -> Any:
    """A client of the store with the experiment's secrets, or else with boto3's own credentials."""
    from cloud.storage.client import make_client

    access_key, secret_key, session_token = (
        (environ.get(OWN_SECRET + name) or environ.get(name)) if name in spec.secrets else None
        for name in (*STORE_KEYS, "AWS_SESSION_TOKEN")
    )
    return make_client(
        spec.data.endpoint,
        region=spec.data.region,
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        connect_timeout_s=_CONNECT_S,
        attempts=1,
    )
