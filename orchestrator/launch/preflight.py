"""Checks before a launch creates or rents anything."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from cloud.local.host.faults import available_memory, check_memory
from cloud.local.host.store import forward_target
from cloud.local.options import LocalOptions
from cloud.provider import CredentialsError
from cloud.targets import TARGETS
from cloud.vendors import RENTABLE
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from experiments.wire.orders import MAX_PEERS
from metrics.store.database import DiskFullError
from orchestrator.checks.credentials import cloud_access, package_there
from orchestrator.errors import RaySessionError, UsageError
from orchestrator.launch.plan_run import RunPlan
from orchestrator.launch.prepare import dataset_of, secret_values
from orchestrator.launch.rent_checks import (
    STORE_KEYS,
    aws_buckets,
    check_own_keys,
    has_aws_places,
)

_CONNECT_S = 5.0
_PRIVATE = "or, if only the VMs {}, set data.private: true to skip this check"
_ROOM_BYTES = 100_000_000  # the data set, its copies in the peers' caches, records, logs


def preflight(plan: RunPlan, home: Path) -> None:
    """Check everything that a run needs, without creating anything (see `make_aws_role`).

    These are the experiment, its secrets, disk space in the state folder, the user's own Ray and the shards.
    On this machine also memory; on rented VMs also obstacles to renting them, SkyPilot, and
    the clouds' credentials, including those for the role of VMs on AWS. Raises UsageError, DiskFullError,
    RaySessionError, CredentialsError, TransientError (AWS does not respond), InvalidRequestError (not enough
    memory, an endpoint that the emulated cloud cannot reach), StorageError (unreachable, refused, missing,
    incomplete tar).
    """
    spec, target = plan.spec, plan.target
    if spec.emulation is None and not target.rents:
        raise UsageError(
            f"{spec.name}: 'emulation: null' requires real VMs; rent them with --on sky, or remove it"
        )
    if spec.peer_count > MAX_PEERS:
        raise UsageError(
            f"{spec.name}: {spec.peer_count} peers, but a signed record of the allowlist holds at most {MAX_PEERS}; use fewer"
        )
    values = secret_values(spec)
    _check_room(home)
    _check_ray(os.environ.get("RAY_ADDRESS", ""))
    if target.rents:
        for sentence in plan.unrentable:
            raise UsageError(f"{spec.name}: {sentence}")
        check_own_keys(spec)
        _check_clouds(spec)
        if not spec.data.private:
            _check_rented_data(spec, values)
        _check_aws_role(spec)
        return
    check_memory(spec.peer_count, LocalOptions().peer_memory_bytes, available_memory())
    if not spec.data.endpoint:
        dataset_of(spec)
        return
    forward_target(spec.data.endpoint)
    _check_data(spec)


def _check_data(
    spec: ExperimentSpec,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
) -> None:
    """Check all shards, with these keys or those that boto3 finds. Raises StorageError."""
    from cloud.storage.check import check_shards
    from cloud.storage.client import make_client

    client = make_client(
        spec.data.endpoint,
        region=spec.data.region,
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        connect_timeout_s=_CONNECT_S,
        attempts=2,
    )
    for pattern in (spec.data.shards, spec.data.heldout):
        if pattern:
            check_shards(shard_urls(pattern), client, endpoint=spec.data.endpoint)


def _check_rented_data(spec: ExperimentSpec, values: Mapping[str, str]) -> None:
    """Check the shards with the keys that the VMs will use, or with the user's own if the VMs use a role."""
    from cloud.storage.errors import StoreRefusedError, StoreUnreachableError

    access_key, secret_key = (values.get(name) for name in STORE_KEYS)
    session_token = values.get("AWS_SESSION_TOKEN") if access_key else None
    try:
        _check_data(spec, access_key, secret_key, session_token)
    except StoreUnreachableError as error:
        raise StoreUnreachableError(f"{error}; {_PRIVATE.format('can reach it')}") from error
    except StoreRefusedError as error:
        if access_key:
            raise StoreRefusedError(
                f"{error}: for the VMs under the experiment's secrets, here as ORCH_SECRET_AWS_ACCESS_KEY_ID and "
                "ORCH_SECRET_AWS_SECRET_ACCESS_KEY"
            ) from error
        raise StoreRefusedError(f"{error}; {_PRIVATE.format('may read it')}") from error


def _check_clouds(spec: ExperimentSpec) -> None:
    """Check that SkyPilot is installed, and that there are credentials for every cloud of the experiment."""
    if not package_there("sky"):
        raise UsageError("SkyPilot is not installed; run `pip install -e '.[sky]'` in a clone of orch")
    clouds = {place.infra.partition("/")[0] for group in spec.peers for place in group.alternatives}
    for cloud in sorted(clouds):
        if cloud not in RENTABLE:
            raise UsageError(
                f"{spec.name}: VMs cannot be rented from '{cloud}', only from {', '.join(RENTABLE)}"
            )
        access = cloud_access(RENTABLE[cloud], os.environ)
        if access.lacks:
            raise CredentialsError(
                f"{spec.name}: {cloud}: {access.lacks}; {access.next}, or remove its places; see `orch check --on sky`"
            )


def make_aws_role(spec: ExperimentSpec, on: str) -> None:
    """Create the missing parts of the role of VMs on AWS, after the user's approval.

    Raises CredentialsError, TransientError.
    """
    if TARGETS[on].rents and has_aws_places(spec):
        from cloud.sky.aws.role import ensure

        ensure(aws_buckets(spec))


def _check_aws_role(spec: ExperimentSpec) -> None:
    """Check that these credentials may read the role. Raises CredentialsError, TransientError."""
    if has_aws_places(spec):
        from cloud.sky.aws.role import is_there

        is_there(aws_buckets(spec))


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
