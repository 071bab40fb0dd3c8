"""Measured networks between places (round-trip time, throughput of one stream), as data files with sources."""

from cloud.networks.models import (
    NO_PATH_MODEL,
    PathModel,
    VmModel,
    path_bounds,
    path_model,
    path_model_names,
    vm_bounds,
    vm_limit,
    vm_model,
)
from cloud.networks.network import Network, NetworkError, Path, network_names

__all__ = [
    "NO_PATH_MODEL",
    "Network",
    "NetworkError",
    "Path",
    "PathModel",
    "VmModel",
    "network_names",
    "path_bounds",
    "path_model",
    "path_model_names",
    "vm_bounds",
    "vm_limit",
    "vm_model",
]
