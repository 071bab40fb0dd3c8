"""The TCP window that a default kernel keeps in flight, and how a small unscaled window emulates it.

All long-distance figures of the paper's network correspond to one window. Its iperf tests took 10 s including slow start;
with that and the window of the paper's Hivemind streams (path_models.csv), all twelve figures are reproduced
(tests/cloud/local/test_kernel_windows.py).
"""

from __future__ import annotations

from cloud.networks.models import path_model

# MTU of links that are limited by kernel windows: forwarding packets of this size costs the switch less than half of
# what 1500-byte packets do.
KERNEL_MTU_BYTES = 4420
_SEGMENT_BYTES = KERNEL_MTU_BYTES - 52  # IPv4, TCP and its timestamps
# Most bytes in flight on a connection without TCP window scaling: 65535 bytes in whole segments.
UNSCALED_WINDOW_BYTES = 65535 // _SEGMENT_BYTES * _SEGMENT_BYTES
# Of that, a stream through the switch carries 0.98 per round trip (data one way) or 0.95 to 0.98 (both ways at once): a
# window is a burst, which takes time to pass the VM's limit.
_CARRIED = 0.97


def default_window_bytes() -> float:
    """Bytes that a stream of a default kernel keeps in flight on a long path (path model `study`)."""
    return path_model("study").window_bytes


def kernel_bytes_scale() -> float:
    """The bytes_scale (rounded to 0.1) at which an unscaled kernel window emulates that of a default kernel."""
    return round(default_window_bytes() / (UNSCALED_WINDOW_BYTES * _CARRIED), 1)
