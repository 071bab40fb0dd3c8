"""Kernel settings of `network_tuning: wan`, and what Linux uses without them. Sizes are in bytes.

A stream carries one window per round trip. By default Linux lets a receive buffer grow to 6 MiB, half of which is window:
3 MB, which is 240 Mb/s over a transatlantic round trip of 103 ms and 90 Mb/s over 272 ms, whatever the link could carry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cloud.networks.models import PathModel
from cloud.networks.windows import default_window_bytes

NetworkTuning = Literal["default", "wan"]

DEFAULT_RECEIVE_BYTES = 6 << 20  # third value of tcp_rmem on a Linux machine with a few GB of memory
BUFFER_BYTES = 64 << 20
# Without the last setting Linux would start each averaging round with slow start again, after an idle calculation phase.
SYSCTLS = (
    ("net.core.rmem_max", str(BUFFER_BYTES)),
    ("net.core.wmem_max", str(BUFFER_BYTES)),
    ("net.ipv4.tcp_rmem", f"4096 131072 {BUFFER_BYTES}"),
    ("net.ipv4.tcp_wmem", f"4096 65536 {BUFFER_BYTES}"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
)


def window_factor(tuning: NetworkTuning) -> float:
    """Factor by which a VM's TCP windows may grow beyond those of a default kernel."""
    return BUFFER_BYTES / DEFAULT_RECEIVE_BYTES if tuning == "wan" else 1.0


def tuned(model: PathModel, tuning: NetworkTuning) -> PathModel:
    """Return a path model with the TCP windows of VMs with this setting.

    A model without a window of its own gets that of a default kernel, as in the emulation with kernel windows.
    """
    if tuning == "default":
        return model
    window_bytes = model.window_bytes or default_window_bytes()
    return replace(model, window_bytes=window_bytes, window_factor=window_factor(tuning))
