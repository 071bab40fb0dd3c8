"""Whose credentials a VM has: the role of its own cloud where there is one, none of the user's files.

SkyPilot copies the credential files of every cloud it knows to each VM (sky/check.py,
`get_cloud_credential_file_mounts`). Most clouds have a switch for that; what has none is removed on the VM before
anything of ours runs there.
"""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Collection
from typing import Any

from cloud.vendors import VENDORS

# Clouds of SkyPilot beside ours whose part of its configuration knows `remote_identity`.
_OTHERS = ("kubernetes", "ssh", "slurm", "oci", "vast", "nebius")
_SWITCHED = (*(vendor.name for vendor in VENDORS.values() if vendor.skypilot_switch), *_OTHERS)
_STORES = ("cloudflare", "coreweave", "vastdata", "huggingface")  # sky.adaptors


def settings(cloud: str, aws_role: str = "") -> dict[str, Any]:
    """SkyPilot's configuration for a VM at `cloud`: every cloud without an entry of its own uploads nothing.

    `aws_role` is the instance profile of a VM on AWS (cloud/sky/aws/role.py).
    """
    found = {other: {"remote_identity": "NO_UPLOAD"} for other in _SWITCHED}
    vendor = VENDORS.get(cloud)
    match vendor.identity if vendor else "uploaded":
        case "role":
            found[cloud] = {"remote_identity": aws_role}
        case "service_account":
            found[cloud] = {"remote_identity": "SERVICE_ACCOUNT"}
        case _:  # its VMs cannot end themselves without what SkyPilot gives them
            found.pop(cloud, None)
    return found


def removal(cloud: str, wanted: Collection[str]) -> str:
    """A shell command that removes what SkyPilot copies of other clouds all the same, but for the user's own mounts.

    "" where this machine has nothing of the kind. Paths are the remote ones ("~/.lambda_cloud/lambda_keys").
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
