"""What is known to fail before anything is rented: asked while nothing has been made that would be left over."""

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
from cloud.vendors import RENTED
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
_PRIVATE = "or set data.private: true where only the VMs {}, and nobody looks before they are rented"
_ROOM_BYTES = 100_000_000  # the data set, its copies in the peers' caches, records, logs


def preflight(plan: RunPlan, home: Path) -> None:
    """Look at all that a run needs: the experiment's own wishes, secrets, room in the state folder, the user's own
    Ray; the shards; on this machine memory, on rented VMs what stands against renting them, SkyPilot,
    the clouds' credentials, also for the role of VMs on AWS. Makes nothing (see `make_aws_role`).

    Raises UsageError, DiskFullError, RaySessionError, CredentialsError, TransientError (AWS does not answer),
    InvalidRequestError (no memory, an endpoint the emulated cloud cannot reach), StorageError (unreachable, refused,
    missing, no whole tar).
    """
    spec, target = plan.spec, plan.target
    if spec.emulation is None and not target.rents:
        raise UsageError(
            f"{spec.name}: 'emulation: null' wishes for real VMs; rent them with --on sky, or remove it"
        )
    if spec.peer_count > MAX_PEERS:
        raise UsageError(
            f"{spec.name}: {spec.peer_count} peers; one signed record names {MAX_PEERS} at most, so wish for fewer"
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
        _look_at_aws_role(spec)
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
    """All shards, with these keys or those that boto3 finds. Raises StorageError."""
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
    """As the VMs will read them: with the experiment's own keys. With none (VMs with a role) by ours."""
    from cloud.storage.errors import StoreRefusedError, StoreUnreachableError

    access_key, secret_key = (values.get(name) for name in STORE_KEYS)
    session_token = values.get("AWS_SESSION_TOKEN") if access_key else None
    try:
        _check_data(spec, access_key, secret_key, session_token)
    except StoreUnreachableError as error:
        raise StoreUnreachableError(f"{error}; {_PRIVATE.format('reach it')}") from error
    except StoreRefusedError as error:
        if access_key:
            raise StoreRefusedError(
                f"{error}: for the VMs under the experiment's secrets, here as ORCH_SECRET_AWS_ACCESS_KEY_ID and "
                "ORCH_SECRET_AWS_SECRET_ACCESS_KEY"
            ) from error
        raise StoreRefusedError(f"{error}; {_PRIVATE.format('may read it')}") from error


def _check_clouds(spec: ExperimentSpec) -> None:
    """SkyPilot is here, and so are credentials for every cloud that the experiment names."""
    if not package_there("sky"):
        raise UsageError("SkyPilot is not installed: `pip install -e '.[sky]'` in a clone of orch brings it")
    clouds = {place.infra.partition("/")[0] for group in spec.peers for place in group.alternatives}
    for cloud in sorted(clouds):
        if cloud not in RENTED:
            raise UsageError(f"{spec.name}: VMs are rented from {', '.join(RENTED)}, not from '{cloud}'")
        access = cloud_access(RENTED[cloud], os.environ)
        if access.lacks:
            raise CredentialsError(
                f"{spec.name}: {cloud}: {access.lacks}; {access.next}, or remove its places; `orch check --on sky` shows all"
            )


def make_aws_role(spec: ExperimentSpec, on: str) -> None:
    """After the user's approval: what is missing of the role that VMs on AWS have is made. Raises CredentialsError,
    TransientError."""
    if TARGETS[on].rents and has_aws_places(spec):
        from cloud.sky.aws.role import ensure

        ensure(aws_buckets(spec))


def _look_at_aws_role(spec: ExperimentSpec) -> None:
    """These credentials may look at the role. Raises CredentialsError, TransientError."""
    if has_aws_places(spec):
        from cloud.sky.aws.role import is_there

        is_there(aws_buckets(spec))


def _check_room(home: Path) -> None:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError:
        return  # what is wrong with the folder is told when it is written to
    if free_bytes < _ROOM_BYTES:
        raise DiskFullError(
            f"{home}: {free_bytes / 1e6:.0f} MB free on its disk, and a run takes about {_ROOM_BYTES / 1e6:.0f} MB; "
            "free some there, or set ORCH_HOME to a folder on another one"
        )


def _check_ray(address: str) -> None:
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():  # none, or a word that Ray knows ("auto")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RaySessionError(
            f"RAY_ADDRESS {address}: nobody answers there ({error}); start that Ray, or unset RAY_ADDRESS and orch "
            "starts its own"
        ) from error
