"""Offline checks of an experiment for rented VMs, against its file and local paths."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from cloud.places import find
from cloud.vendors import AWS, RENTABLE
from experiments.catalog import models
from experiments.emulation.accelerators import is_padded
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.launch.obstacles import Obstacle, ObstacleCode

STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TRAINED = ("vision", "digits")  # kinds of models that learn from shards of images


def rent_obstacles(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """Obstacles to a launch on rented VMs. Reads only the local paths of `file_mounts`."""
    yield from _own_places(spec)
    yield from _store(spec)
    yield from _model(spec)
    yield from _mounts(spec)


def reads_by_role(spec: ExperimentSpec) -> bool:
    """Whether the VMs can read the store by their role: the store and all VMs are on AWS."""
    host = urlsplit(spec.data.endpoint).hostname or ""
    amazons = host.endswith(".amazonaws.com") if host else AWS.has(spec.data.location)
    return amazons and all(AWS.has(place.infra) for group in spec.peers for place in group.alternatives)


def aws_buckets(spec: ExperimentSpec) -> tuple[str, ...]:
    """S3 buckets that VMs on AWS read by their role.

    These are the buckets of the shards, unless `secrets` has keys of the store, and those of `file_mounts`.
    """
    patterns = () if STORE_KEYS[0] in spec.secrets else (spec.data.shards, spec.data.heldout or "")
    shards = (
        (bucket for pattern in patterns for bucket in _buckets_of(pattern)) if reads_by_role(spec) else ()
    )
    mounts = (urlsplit(source).netloc for source in spec.file_mounts.values() if source.startswith("s3://"))
    return tuple(sorted({*shards, *mounts}))


def aws_written(spec: ExperimentSpec) -> tuple[str, ...]:
    """Places "bucket/prefix" that VMs on AWS write by their role: that of the checkpoints, unless `secrets` has keys."""
    if spec.checkpoint is None or STORE_KEYS[0] in spec.secrets or not reads_by_role(spec):
        return ()
    return (spec.checkpoint.folder(spec.data.shards).removeprefix("s3://"),)


def clouds_of(spec: ExperimentSpec) -> tuple[str, ...]:
    """Clouds where the experiment rents VMs, sorted; its own machines are in none."""
    places = {place.infra for group in spec.peers for place in group.alternatives}
    return tuple(sorted({infra.partition("/")[0] for infra in places if not find(infra).own}))


def has_aws_places(spec: ExperimentSpec) -> bool:
    """Whether the experiment may rent VMs on AWS."""
    places = (place.infra for group in spec.peers for place in group.alternatives)
    return any(AWS.has(infra) for infra in places)


def _buckets_of(pattern: str) -> set[str]:
    """Bucket names of a shard pattern.

    Only braces in the bucket itself are expanded; a pattern may have 100,000 shards.
    """
    bucket = pattern.removeprefix("s3://").partition("/")[0]
    urls = shard_urls(pattern) if "{" in bucket else (pattern,) if pattern else ()
    return {urlsplit(url).netloc for url in urls}


def _own_places(spec: ExperimentSpec) -> Iterator[Obstacle]:
    own = sorted({r.infra for group in spec.peers for r in group.alternatives if find(r.infra).own})
    if own:
        yield Obstacle(
            ObstacleCode.OWN_PLACE,
            f"{', '.join(own)}: your own machine, which cannot be rented: use `--on local` to emulate it, or remove "
            "its group",
        )
    others = [cloud for cloud in clouds_of(spec) if cloud not in RENTABLE]
    if others:
        yield Obstacle(
            ObstacleCode.CLOUD_NOT_RENTED,
            f"VMs cannot be rented from {', '.join(others)}, only from {', '.join(RENTABLE)}",
        )


def _store(spec: ExperimentSpec) -> Iterator[Obstacle]:
    data = spec.data
    host = urlsplit(data.endpoint).hostname or ""
    if not data.endpoint and not AWS.has(data.location):  # boto3 finds S3 itself
        yield Obstacle(
            ObstacleCode.STORE_UNREACHABLE,
            "data.endpoint is empty, and rented VMs cannot reach the embedded store of this machine; set "
            "the http(s) endpoint of an object store with the shards (or data.location: aws/REGION for S3)",
        )
    elif host == "localhost" or _is_loopback(host):
        yield Obstacle(
            ObstacleCode.STORE_UNREACHABLE,
            f"data.endpoint {data.endpoint} is this machine's loopback, which rented VMs cannot "
            "reach; set an address that they can reach",
        )
    missing = [name for name in STORE_KEYS if name not in spec.secrets]
    if len(missing) == 1 or (missing and not reads_by_role(spec)):
        wanted = ", ".join(f"{name}: null" for name in missing)
        yield Obstacle(
            ObstacleCode.STORE_KEYS,
            f"rented VMs get no keys of the store in {data.location} except those listed under secrets; "
            f"add 'secrets: {{{wanted}}}' and export the values (as ORCH_SECRET_NAME if NAME is also used for the cloud)",
        )


def _model(spec: ExperimentSpec) -> Iterator[Obstacle]:
    kind = models()[spec.model].kind if spec.model is not None else _TRAINED[0]
    if not is_padded(spec) and kind not in _TRAINED:
        trained = ", ".join(name for name, model in models().items() if model.kind in _TRAINED)
        yield Obstacle(
            ObstacleCode.MODEL_DATA,
            f"{spec.model} trains on {'text' if kind == 'language' else kind}, but the shards that this version streams "
            f"contain images; choose one of {trained}, give a 'task', or remove 'emulation: null'",
        )


def _mounts(spec: ExperimentSpec) -> Iterator[Obstacle]:
    for target, source in spec.file_mounts.items():
        if "://" in source:
            continue  # a bucket
        try:
            path = Path(source).expanduser()
        except RuntimeError:
            yield Obstacle(
                ObstacleCode.FILE_MOUNT,
                f"file_mounts: '{target}' comes from '{source}', a home folder that is unknown; use an absolute path",
            )
            continue
        if not path.is_absolute():
            yield Obstacle(
                ObstacleCode.FILE_MOUNT,
                f"file_mounts: '{target}' comes from '{source}', which is a relative path; use an absolute path",
            )
        elif not path.exists():
            yield Obstacle(
                ObstacleCode.FILE_MOUNT,
                f"file_mounts: '{target}' comes from {path}, which does not exist; create it or correct the path",
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
