"""Cluster names and label values that every cloud accepts, derived from orch's names. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

# Google has the shortest limit: 35 characters, of which SkyPilot uses 9 for "-" and its user's hash. SkyPilot would
# shorten a longer name to a few characters of a hash, which two of our names might share.
CLUSTER_NAME_MAX = 26
_HASH = 11
_VALUE_MAX = 63
_PLAIN = re.compile(r"[a-z][a-z0-9-]*-[0-9]+")


def cluster_name(vm: str) -> str:
    """Return the name of SkyPilot's cluster for a VM: the VM's own name if it fits, else its beginning and a hash.

    Two VMs never get the same name: an unchanged name ends with a number (its generation), a hashed one with "h" and ten
    hex digits of SHA-256.
    """
    if len(vm) <= CLUSTER_NAME_MAX and _PLAIN.fullmatch(vm):
        return vm
    digest = "h" + hashlib.sha256(vm.encode()).hexdigest()[: _HASH - 1]
    head = re.sub(r"[^a-z0-9]+", "-", vm.lower())[: CLUSTER_NAME_MAX - _HASH - 1].strip("-")
    if not head[:1].isalpha():
        head = f"o{head}"[: CLUSTER_NAME_MAX - _HASH - 1].strip("-")
    return f"{head}-{digest}"


def label_value(text: str) -> str:
    """Convert `text` to a label value: a-z, 0-9, "_" and "-", at most 63 characters (Google's rule, the strictest).

    A text that has to be changed gets a hash, so that different texts stay different.
    """
    plain = re.sub(r"[^a-z0-9_-]", "-", text.lower())
    if plain == text and len(text) <= _VALUE_MAX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{plain[: _VALUE_MAX - 11]}-{digest}"


def labels_of(vm: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with which a VM is created: the request's, and the VM's own name."""
    return {name: label_value(value) for name, value in {**labels, "orch-vm": vm}.items()}
