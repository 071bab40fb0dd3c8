"""The TCP settings of an emulated VM's kernel: what limits its streams, or makes sure that only the switch does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloud.network_tuning import BUFFER_BYTES, DEFAULT_RECEIVE_BYTES, NetworkTuning
from cloud.networks import Network
from cloud.networks.windows import UNSCALED_WINDOW_BYTES

__all__ = ["TcpSettings", "Windows", "store_settings", "tcp_settings"]

Windows = Literal["paced", "kernel"]

# Paced: buffers in windows of the network. Receive: plenty, half of it becomes the window offered. Send: little, since
# p2pd's yamux offers 256 KiB a stream, which does not scale (one second of data at 1/100 of a transatlantic stream), and
# its window updates wait behind what the socket holds: with 12 windows in the send buffer a stream stood still up to a second.
_RECEIVE_WINDOWS, _SEND_WINDOWS = 16, 3
_STORE_BUFFER_BYTES = 4 << 20
_PLENTY_BYTES = 1 << 20  # holds many unscaled windows, however small the packets they come in


@dataclass(frozen=True)
class TcpSettings:
    """What is written under /proc/sys/net/ipv4 of a namespace."""

    receive_bytes: int  # fixed: no auto-tuning
    send_bytes: int
    window_scaling: bool = True  # without: no window exceeds 65535 bytes


def tcp_settings(
    network: Network, bytes_scale: float, windows: Windows, tuning: NetworkTuning
) -> TcpSettings:
    """Of a VM. Paced: buffers so large that the switch limits every stream. Kernel: default is the unscaled window, which
    stands for a default kernel's at `networks.kernel_bytes_scale`; wan widens it as much as the tuning does on a VM."""
    if windows == "paced":
        window_bytes = network.window_bytes() / bytes_scale
        return TcpSettings(
            max(65536, int(_RECEIVE_WINDOWS * window_bytes)), max(65536, int(_SEND_WINDOWS * window_bytes))
        )
    if tuning == "default":
        return TcpSettings(_PLENTY_BYTES, _SEND_WINDOWS * UNSCALED_WINDOW_BYTES, window_scaling=False)
    wider = BUFFER_BYTES / DEFAULT_RECEIVE_BYTES
    window_bytes = wider * UNSCALED_WINDOW_BYTES
    return TcpSettings(int(2 * window_bytes), int(window_bytes))


def store_settings() -> TcpSettings:
    """Of the object store: nothing but the switch limits it."""
    return TcpSettings(_STORE_BUFFER_BYTES, _STORE_BUFFER_BYTES)
