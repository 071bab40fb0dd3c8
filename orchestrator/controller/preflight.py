"""What is known to fail before anything is rented: asked while nothing has been made that would be left over."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from cloud.local.faults import available_memory, check_memory
from cloud.local.options import LocalOptions
from cloud.local.store import forward_target
from cloud.provider import CredentialsError
from experiments.spec.schema import ExperimentSpec
from experiments.spec.shards import shard_urls
from metrics.orders import MAX_PEERS
from metrics.store import DiskFullError
from orchestrator.checks.credentials import CLOUDS, cloud_access, package_there
from orchestrator.controller.launching import dataset_of, missing_secrets
from orchestrator.controller.sky_runs import check_store
from orchestrator.errors import RaySessionError, UsageError

__all__ = ["preflight"]

_CONNECT_S = 5.0
_ROOM_BYTES = 100_000_000  # the data set, its copies in the peers' caches, records, logs


def preflight(spec: ExperimentSpec, home: Path, on: str = "local") -> None:
    """Look at all that a run needs: the experiment's own wishes, secrets, room in the state folder, the user's own
    Ray; on this machine ("local") memory and the shards, on rented VMs ("sky") SkyPilot and the clouds' credentials.

    Raises UsageError, DiskFullError, RaySessionError, CredentialsError, InvalidRequestError (no memory, an endpoint the
    emulated cloud cannot reach), StorageError (unreachable, refused, missing, no whole tar).
    """
    if spec.emulation is None and on == "local":
        raise UsageError(
            f"{spec.name}: 'emulation: null' wishes for real VMs; rent them with --on sky, or remove it"
        )
    if spec.peer_count > MAX_PEERS:
        raise UsageError(
            f"{spec.name}: {spec.peer_count} peers; one signed record names {MAX_PEERS} at most, so wish for fewer"
        )
    missing = missing_secrets(spec)
    if missing:
        raise UsageError(
            f"{spec.name}: secrets {', '.join(missing)}: not set in the environment of `orch`; export them"
        )
    _check_room(home)
    _check_ray(os.environ.get("RAY_ADDRESS", ""))
    if on != "local":
        check_store(spec)
        _check_clouds(spec)
        return
    check_memory(spec.peer_count, LocalOptions().peer_memory_bytes, available_memory())
    if not spec.data.endpoint:
        dataset_of(spec)
        return
    from cloud.storage.check import check_shards
    from cloud.storage.client import make_client

    forward_target(spec.data.endpoint)
    client = make_client(
        spec.data.endpoint, region=spec.data.region, connect_timeout_s=_CONNECT_S, attempts=2
    )
    for pattern in (spec.data.shards, spec.data.heldout):
        if pattern:
            check_shards(shard_urls(pattern), client, endpoint=spec.data.endpoint)


def _check_clouds(spec: ExperimentSpec) -> None:
    """SkyPilot is here, and so are credentials for every cloud that the experiment names."""
    if not package_there("sky"):
        raise UsageError("SkyPilot is not installed: `pip install 'orch[sky]'` brings it")
    clouds = {place.infra.partition("/")[0] for group in spec.peers for place in group.alternatives}
    for cloud in sorted(clouds):
        if cloud not in CLOUDS:
            raise UsageError(f"{spec.name}: VMs are rented from {', '.join(CLOUDS)}, not from '{cloud}'")
        access = cloud_access(cloud, os.environ)
        if access.lacks:
            raise CredentialsError(
                f"{spec.name}: {cloud}: {access.lacks}; {access.next}, or remove its places; `orch check --on sky` shows all"
            )


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
