"""What is known to fail before anything is rented: asked while nothing has been made that would be left over."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from cloud.local.faults import available_memory, check_memory
from cloud.local.options import LocalOptions
from cloud.local.store import forward_target
from experiments.spec.schema import ExperimentSpec
from experiments.spec.shards import shard_urls
from metrics.store import DiskFullError
from orchestrator.controller.launching import dataset_of
from orchestrator.errors import RaySessionError, UsageError

__all__ = ["preflight"]

_CONNECT_S = 5.0
_ROOM_BYTES = 100_000_000  # the data set, its copies in the peers' caches, records, logs


def preflight(spec: ExperimentSpec, home: Path) -> None:
    """Look at all that a run on this machine needs: the experiment's own wishes, secrets, memory,
    room in the state folder, the user's own Ray, the shards.

    Raises UsageError, DiskFullError, RaySessionError, InvalidRequestError (no memory, an endpoint the emulated cloud cannot
    reach), StorageError (unreachable, refused, missing, no whole tar).
    """
    if spec.emulation is None:
        raise UsageError(
            f"{spec.name}: 'emulation: null' wishes for real VMs, which this release cannot rent; remove it"
        )
    missing = sorted(name for name in spec.secrets if name not in os.environ)
    if missing:
        raise UsageError(
            f"{spec.name}: secrets {', '.join(missing)}: not set in the environment of `orch`; export them"
        )
    check_memory(spec.peer_count, LocalOptions().peer_memory_bytes, available_memory())
    _check_room(home)
    _check_ray(os.environ.get("RAY_ADDRESS", ""))
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
