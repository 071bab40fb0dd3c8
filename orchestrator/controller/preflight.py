"""What is known to fail before anything is rented: asked while nothing has been made that would be left over."""

from __future__ import annotations

import os

from cloud.local.faults import available_memory, check_memory
from cloud.local.options import LocalOptions
from cloud.local.store import forward_target
from experiments.spec.schema import ExperimentSpec
from experiments.spec.shards import shard_urls
from orchestrator.controller.launching import dataset_of
from orchestrator.errors import UsageError

__all__ = ["preflight"]

_CONNECT_S = 5.0


def preflight(spec: ExperimentSpec) -> None:
    """Look at all that a run on this machine needs: the experiment's own wishes, secrets, memory, the shards.

    Raises UsageError, InvalidRequestError (no memory, an endpoint the emulated cloud cannot reach),
    StorageError (unreachable, refused, missing, no whole tar).
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
