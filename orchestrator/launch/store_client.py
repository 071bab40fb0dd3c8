"""A client of an experiment's object store on the machine of `orch`, with the keys that the experiment's peers will use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.schema.models import ExperimentSpec
from orchestrator.launch.rent_checks import STORE_KEYS
from orchestrator.launch.secret_values import OWN_SECRET

_CONNECT_S = 5.0
_SESSION_TOKEN = "AWS_SESSION_TOKEN"


def store_keys(spec: ExperimentSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Values of those secrets of the experiment that are keys of its store, by name; absent ones are left out."""
    named = [name for name in (*STORE_KEYS, _SESSION_TOKEN) if name in spec.secrets]
    values = {name: environ.get(OWN_SECRET + name) or environ.get(name) for name in named}
    return {name: value for name, value in values.items() if value}


def client_options(spec: ExperimentSpec, keys: Mapping[str, str]) -> dict[str, Any]:
    """Options of `cloud.storage.client.make_client`: the region, and the keys. Without keys, boto3 finds its own."""
    access_key, secret_key = (keys.get(name) for name in STORE_KEYS)
    return {
        "region": spec.data.region,
        "access_key": access_key,
        "secret_key": secret_key,
        "session_token": keys.get(_SESSION_TOKEN) if access_key else None,
    }


def store_client(spec: ExperimentSpec, keys: Mapping[str, str], *, attempts: int) -> Any:
    """A client that gives up soon. Raises StorageError."""
    from cloud.storage.client import make_client

    options = client_options(spec, keys)
    return make_client(spec.data.endpoint, connect_timeout_s=_CONNECT_S, attempts=attempts, **options)
