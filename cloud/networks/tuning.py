"""`network_tuning: wan`: what it sets in a VM's kernel, and what Linux sets without it. Sizes are bytes.

A stream carries one window a round trip. Linux lets a receive buffer grow to 6 MiB, half of which is window: 3 MB, which is
240 Mb/s over a transatlantic round trip of 103 ms and 90 Mb/s over 272 ms, whatever the line could carry.
"""

from __future__ import annotations

from typing import Literal

NetworkTuning = Literal["default", "wan"]

DEFAULT_RECEIVE_BYTES = 6 << 20  # tcp_rmem's third figure on a Linux of some GB
BUFFER_BYTES = 64 << 20
# After an idle calculation phase Linux would begin each averaging with slow start again.
SYSCTLS = (
    ("net.core.rmem_max", str(BUFFER_BYTES)),
    ("net.core.wmem_max", str(BUFFER_BYTES)),
    ("net.ipv4.tcp_rmem", f"4096 131072 {BUFFER_BYTES}"),
    ("net.ipv4.tcp_wmem", f"4096 65536 {BUFFER_BYTES}"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
)


def widening(tuning: NetworkTuning) -> float:
    """How many times wider than a default kernel's a VM's TCP windows may grow."""
    return BUFFER_BYTES / DEFAULT_RECEIVE_BYTES if tuning == "wan" else 1.0
