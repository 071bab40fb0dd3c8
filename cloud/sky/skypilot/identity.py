"""Which credentials a VM gets: the role of its own cloud if there is one, and none of the user's files.

SkyPilot copies the credential files of every cloud it knows to each VM (sky/check.py,
`get_cloud_credential_file_mounts`). Most clouds have a setting against that; files of the others are removed on the VM
before any program of orch runs there.
"""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Collection
from typing import Any

from cloud.vendors import VENDORS

# Clouds of SkyPilot, besides orch's own, whose configuration supports `remote_identity`.
_OTHERS = ("kubernetes", "ssh", "slurm", "oci", "vast", "nebius")
_SWITCHED = (*(vendor.name for vendor in VENDORS.values() if vendor.skypilot_switch), *_OTHERS)
_STORES = ("cloudflare", "coreweave", "vastdata", "huggingface")  # sky.adaptors


def settings(cloud: str, aws_role: str = "") -> dict[str, Any]:
    """Return SkyPilot's configuration for a VM at `cloud`: clouds without an entry of their own upload nothing.

    `aws_role` is the instance profile of a VM on AWS (cloud/sky/aws/role.py).
    """
    found = {other: {"remote_identity": "NO_UPLOAD"} for other in _SWITCHED}
    vendor = VENDORS.get(cloud)
    match vendor.identity if vendor else "uploaded":
        case "role":
            found[cloud] = {"remote_identity": aws_role}
        case "service_account":
            found[cloud] = {"remote_identity": "SERVICE_ACCOUNT"}
        case _:  # its VMs need the uploaded credentials to end themselves
            found.pop(cloud, None)
    return found


def removal(cloud: str, wanted: Collection[str]) -> str:
    """Return a shell command that removes files of other clouds that SkyPilot copies anyway, except the user's own mounts.

    "" if this machine has no such files. Paths are remote ones ("~/.lambda_cloud/lambda_keys").
    """
    paths = sorted(_unswitched(cloud) - set(wanted))
    if not paths:
        return ""
    return "rm -f " + " ".join(_quoted(path) for path in paths)


def _quoted(path: str) -> str:
    home, rest = ("~/", path[2:]) if path.startswith("~/") else ("", path)
    return home + shlex.quote(rest)


def _unswitched(cloud: str) -> set[str]:
    registry: Any = importlib.import_module("sky.utils.registry")
    mounts: dict[str, str] = {}
    for name, other in registry.CLOUD_REGISTRY.items():
        if name not in _SWITCHED and name != cloud:
            mounts |= other.get_credential_file_mounts()
    for name in _STORES:
        mounts |= importlib.import_module(f"sky.adaptors.{name}").get_credential_file_mounts()
    return {there for there, here in mounts.items() if os.path.exists(os.path.expanduser(here))}
