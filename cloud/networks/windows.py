"""The one TCP window that stands behind a network's single-stream figures.

A figure of the network file is the mean of a short iperf test, slow start included, so rate x round trip is not the
window but falls with the round trip: each one spent in slow start is lost. A line through rate x round trip of the
long paths, at a round trip of 0, is the window itself. For the study's network it is 2.97 MB, near the 3.1 MB that
Linux's default receive buffer (6 MiB, half of it window) allows; with that one number, slow start from ten segments and
the 10 s that its iperf ran, all twelve long figures come out within 2 % (tests/cloud/test_kernel_windows.py).
"""

from __future__ import annotations

from cloud.networks.network import Network, NetworkError

__all__ = ["UNSCALED_WINDOW_BYTES", "default_window_bytes", "kernel_bytes_scale"]

# What a connection without TCP's window scaling has in flight at most: 65535 bytes in whole segments of 1448 bytes.
UNSCALED_WINDOW_BYTES = 45 * 1448
_LONG_S = 0.1  # below, something other than a default window may limit a stream


def default_window_bytes(network: Network) -> float:
    """The TCP window (bytes) that the network's hosts had, from its paths of 100 ms and more.

    Least squares of rate x round trip over round trip, at 0. Raises NetworkError where there is no such path.
    """
    paths = [path for path in network.paths.values() if path.rtt_s >= _LONG_S]
    if not paths:
        raise NetworkError(
            f"network '{network.name}' has no path of {_LONG_S * 1e3:.0f} ms or more, which would tell its hosts' "
            "TCP window; set emulation.windows to paced"
        )
    mean_s = sum(path.rtt_s for path in paths) / len(paths)
    mean_bytes = sum(path.window_bytes for path in paths) / len(paths)
    spread = sum((path.rtt_s - mean_s) ** 2 for path in paths)
    if spread == 0:
        return mean_bytes
    slope = sum((path.rtt_s - mean_s) * (path.window_bytes - mean_bytes) for path in paths) / spread
    return mean_bytes - slope * mean_s


def kernel_bytes_scale(network: Network) -> float:
    """The bytes_scale at which a kernel window without scaling stands for the network's default window."""
    return default_window_bytes(network) / UNSCALED_WINDOW_BYTES
