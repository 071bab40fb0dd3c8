"""Names and labels that every cloud accepts, made from ours. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

# The shortest limit is Google's: 35 characters, of which SkyPilot takes 9 for "-" and its user's hash. A longer
# name would be cut by SkyPilot itself to a few characters of hash, which two of our names might share.
CLUSTER_NAME_MAX = 26
_HASH = 11
LABELS = ("orch-run", "orch-slot", "orch-owner", "orch-lease-until", "orch-vm")
_VALUE_MAX = 63
_PLAIN = re.compile(r"[a-z][a-z0-9-]*-[0-9]+")


def cluster_name(vm: str) -> str:
    """SkyPilot's cluster for a VM: its own name where that fits, else its beginning and a hash.

    Two VMs never share one: a name that is kept ends in a number (its generation), a hashed one in "h" and
    ten hex digits of SHA-256.
    """
    if len(vm) <= CLUSTER_NAME_MAX and _PLAIN.fullmatch(vm):
        return vm
    digest = "h" + hashlib.sha256(vm.encode()).hexdigest()[: _HASH - 1]
    head = re.sub(r"[^a-z0-9]+", "-", vm.lower())[: CLUSTER_NAME_MAX - _HASH - 1].strip("-")
    if not head[:1].isalpha():
        head = f"o{head}"[: CLUSTER_NAME_MAX - _HASH - 1].strip("-")
    return f"{head}-{digest}"


def label_value(text: str) -> str:
    """`text` as a label's value: a-z, 0-9, "_" and "-", at most 63 (Google's rule, the strictest).

    What has to be changed gets a hash, so that different texts stay different.
    """
    plain = re.sub(r"[^a-z0-9_-]", "-", text.lower())
    if plain == text and len(text) <= _VALUE_MAX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{plain[: _VALUE_MAX - 11]}-{digest}"


def labels_of(vm: str, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels a VM is created with: the request's, and its own name."""
    return {name: label_value(value) for name, value in {**labels, "orch-vm": vm}.items()}
