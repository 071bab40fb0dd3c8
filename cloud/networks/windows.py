"""The TCP window that a default kernel keeps in flight, and how the kernel's own smallest one stands for it.

All long figures of the study's network are one window: its iperf tests took 10 s, slow start included, and with that and the
window that the study's Hivemind streams show (path_models.csv) all twelve come out (tests/cloud/local/test_kernel_windows.py).
"""

from __future__ import annotations

from cloud.networks.models import path_model

# Of the links where kernel windows limit: packets of this size cost the switch less than half of what 1500 bytes do.
KERNEL_MTU_BYTES = 4420
_SEGMENT_BYTES = KERNEL_MTU_BYTES - 52  # IPv4, TCP and its time stamps
# What a connection without TCP's window scaling has in flight at most: 65535 bytes in whole segments.
UNSCALED_WINDOW_BYTES = 65535 // _SEGMENT_BYTES * _SEGMENT_BYTES
# Of that, a stream through the switch carries 0.98 a round trip (data one way) or 0.95 to 0.98 (both ways at once): a
# window is a burst, which takes its time through the VM's limit.
_CARRIED = 0.97


def default_window_bytes() -> float:
    """What a stream of a default kernel keeps in flight on a long path (path model `study`)."""
    return path_model("study").window_bytes


def kernel_bytes_scale() -> float:
    """The bytes_scale (to a tenth) at which a kernel window without scaling stands for a default kernel's."""
    return round(default_window_bytes() / (UNSCALED_WINDOW_BYTES * _CARRIED), 1)
