"""Measured networks between places (RTT, what one stream carries) as data files with sources."""

from cloud.networks.network import Network, NetworkError, Path, network_names, vm_limit

__all__ = ["Network", "NetworkError", "Path", "network_names", "vm_limit"]
