"""Checks before a launch creates or rents anything."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from cloud.local.host.faults import available_memory, check_memory
from cloud.local.options import LocalOptions
from cloud.targets import TARGETS
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from metrics.store.database import DiskFullError
from orchestrator.errors import RaySessionError
from orchestrator.launch.machine_checks import machine_obstacles
from orchestrator.launch.obstacles import Obstacle, ObstacleCode, refusal
from orchestrator.launch.plan_run import RunPlan
from orchestrator.launch.rent_checks import STORE_KEYS, aws_buckets, aws_written, has_aws_places
from orchestrator.launch.secret_values import secret_values
from orchestrator.launch.store_client import store_client

_CONNECT_S = 5.0
_PRIVATE = "or, if only the VMs {}, set data.private: true to skip this check"
_ROOM_BYTES = 100_000_000  # the data set, its copies in the peers' caches, records, logs


def refuse(plan: RunPlan) -> None:
    """Raise one error with every obstacle that is known offline: RefusedError (money), UsageError."""
    against = (*plan.obstacles, *machine_obstacles(plan.spec, plan.on, os.environ))
    if against:
        raise refusal(plan.spec.name, plan.on, against)


def preflight(plan: RunPlan, home: Path) -> None:
    """Check everything that a run needs, without creating anything (see `make_aws_role`).

    These are the obstacles known offline (`refuse`), disk space in the state folder, the user's own Ray, the shards and
    the place of the checkpoints. On this machine also memory; on rented VMs also the credentials for the role of VMs on
    AWS. Raises the errors of `refuse`, DiskFullError, RaySessionError, CredentialsError, TransientError (AWS does not
    respond), InvalidRequestError (not enough memory), StorageError (unreachable, refused, missing, incomplete tar).
    """
    refuse(plan)
    spec = plan.spec
    _check_room(home)
    _check_ray(os.environ.get("RAY_ADDRESS", ""))
    if plan.target.rents:
        if not spec.data.private:
            _check_rented_data(spec, secret_values(spec))
            _check_checkpoints(plan, secret_values(spec))
        _check_aws_role(spec)
        return
    check_memory(spec.peer_count, LocalOptions().peer_memory_bytes, available_memory())
    if spec.data.endpoint:
        _check_data(spec, {})
        _check_checkpoints(plan, {})


def _check_data(spec: ExperimentSpec, keys: Mapping[str, str]) -> None:
    """Check all shards, with these keys or those that boto3 finds. Raises StorageError."""
    from cloud.storage.check import check_shards

    client = store_client(spec, keys, attempts=2)
    for pattern in (spec.data.shards, spec.data.heldout):
        if pattern:
            check_shards(shard_urls(pattern), client, endpoint=spec.data.endpoint)


def _check_rented_data(spec: ExperimentSpec, values: Mapping[str, str]) -> None:
    """Check the shards with the keys that the VMs will use, or with the user's own if the VMs use a role."""
    from cloud.storage.errors import StoreRefusedError, StoreUnreachableError

    try:
        _check_data(spec, values)
    except StoreUnreachableError as error:
        raise StoreUnreachableError(f"{error}; {_PRIVATE.format('can reach it')}") from error
    except StoreRefusedError as error:
        if STORE_KEYS[0] in values:
            raise StoreRefusedError(
                f"{error}: for the VMs under the experiment's secrets, here as ORCH_SECRET_AWS_ACCESS_KEY_ID and "
                "ORCH_SECRET_AWS_SECRET_ACCESS_KEY"
            ) from error
        raise StoreRefusedError(f"{error}; {_PRIVATE.format('may read it')}") from error


def _check_checkpoints(plan: RunPlan, keys: Mapping[str, str]) -> None:
    """Store and delete an object where the checkpoints will be. Raises UsageError if that is impossible, StorageError."""
    spec = plan.spec
    if spec.checkpoint is None or not spec.checkpoint.required:
        return  # see `default_checkpoints.with_writable_checkpoints`
    from experiments.checkpoints.errors import CheckpointError
    from orchestrator.launch.default_checkpoints import checkpoint_store

    try:
        checkpoint_store(plan, keys).check_writable()
    except CheckpointError as error:
        advice = f"; {_PRIVATE.format('may write there')}" if plan.target.rents else ""
        found = Obstacle(ObstacleCode.CHECKPOINT_PLACE, f"{error}{advice}")
        raise refusal(spec.name, plan.on, [found]) from error


def make_aws_role(spec: ExperimentSpec, on: str) -> None:
    """Create the missing parts of the role of VMs on AWS, after the user's approval.

    Raises CredentialsError, TransientError.
    """
    if TARGETS[on].rents and has_aws_places(spec):
        from cloud.sky.aws.role import ensure

        ensure(aws_buckets(spec), written=aws_written(spec))


def _check_aws_role(spec: ExperimentSpec) -> None:
    """Check that these credentials may read the role. Raises CredentialsError, TransientError."""
    if has_aws_places(spec):
        from cloud.sky.aws.role import is_there

        is_there(aws_buckets(spec), written=aws_written(spec))


def _check_room(home: Path) -> None:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError:
        return  # writing to the folder will report the error
    if free_bytes < _ROOM_BYTES:
        raise DiskFullError(
            f"{home}: only {free_bytes / 1e6:.0f} MB free on its disk, and a run takes about {_ROOM_BYTES / 1e6:.0f} MB; "
            "free some space, or set ORCH_HOME to a folder on another disk"
        )


def _check_ray(address: str) -> None:
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():  # empty, or a keyword of Ray ("auto")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RaySessionError(
            f"RAY_ADDRESS {address}: no connection ({error}); start that Ray, or unset RAY_ADDRESS so that orch "
            "starts its own"
        ) from error
