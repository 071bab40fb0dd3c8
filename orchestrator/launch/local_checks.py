"""Offline checks of an experiment for the emulated cloud of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cloud.local.host.store import forward_target
from cloud.provider import InvalidRequestError
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.errors import UsageError
from orchestrator.launch.local_store import READABLE, dataset_of, store_place
from orchestrator.launch.obstacles import Obstacle, ObstacleCode, of_error


def local_obstacles(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """Obstacles to a launch on the emulated cloud."""
    emulation = spec.emulation
    if emulation is None:
        yield Obstacle(
            ObstacleCode.EMULATION_NULL,
            "'emulation: null' requires real VMs; rent them with --on sky, or remove it",
        )
    elif emulation.network == "none":
        yield Obstacle(
            ObstacleCode.NETWORK_NONE,
            "emulation.network is 'none', but the emulated cloud needs a network; choose one, or use --on sky",
        )
    else:
        yield from _tried(
            ObstacleCode.STORE_PLACE, spec, lambda: store_place(spec.data.location, emulation.network)
        )
    if spec.data.endpoint:
        yield from _tried(
            ObstacleCode.ENDPOINT_NOT_FORWARDED, spec, lambda: forward_target(spec.data.endpoint)
        )
    else:
        yield from _tried(ObstacleCode.SHARD_NAMES, spec, lambda: dataset_of(spec))
        yield from _readable(spec)
        yield from _checkpoint_bucket(spec)


def _checkpoint_bucket(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """Whether the embedded store has the bucket of the checkpoints: it has that of the shards only."""
    if spec.checkpoint is None:
        return
    wanted = spec.checkpoint.folder(spec.data.shards).removeprefix("s3://").partition("/")[0]
    there = shard_urls(spec.data.shards)[0].removeprefix("s3://").partition("/")[0]
    if wanted != there:
        yield Obstacle(
            ObstacleCode.CHECKPOINT_PLACE,
            f"checkpoint.to is in the bucket {wanted}, but the embedded store only has {there}; remove the key, or set "
            "data.endpoint to your own store",
        )


def _readable(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """Whether a built-in task with its own pipeline can read the embedded store's data set."""
    task, data = spec.task, spec.data
    if task is None or task.name is None or data.pipeline is not None:
        return
    usable = READABLE[task.name]
    if data.dataset not in usable:
        yield Obstacle(
            ObstacleCode.MODEL_DATA,
            f"the embedded store holds the data set {data.dataset}, which {task.name} cannot read; set data.dataset to "
            f"{' or '.join(usable)}, or data.endpoint to the store of your own data",
        )


def _tried(code: ObstacleCode, spec: ExperimentSpec, do: Callable[[], Any]) -> Iterator[Obstacle]:
    try:
        do()
    except (UsageError, InvalidRequestError) as error:
        yield of_error(code, spec.name, error)
