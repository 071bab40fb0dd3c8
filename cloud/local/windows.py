"""TCP settings of an emulated VM's kernel: either they limit its streams, or they leave that to the switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloud.networks import Network
from cloud.networks.tuning import NetworkTuning, window_factor
from cloud.networks.windows import KERNEL_MTU_BYTES, UNSCALED_WINDOW_BYTES

Windows = Literal["paced", "kernel"]

# Buffers of paced VMs, in windows of the network. Receive: generous, half of it becomes the advertised window. Send: small,
# since p2pd's yamux offers 256 KiB per stream, which is not scaled (one second of data at 1/100 of a transatlantic stream),
# and its window updates wait behind what the socket holds: with 12 windows in the send buffer a stream stalled for up to a
# second.
_RECEIVE_WINDOWS, _SEND_WINDOWS = 16, 3
_STORE_BUFFER_BYTES = 4 << 20
_PLENTY_BYTES = 1 << 20  # many unscaled windows, however small the packets that they arrive in
_MTU_BYTES = 1500
_HEADERS_BYTES = 52  # IPv4, TCP and its timestamps


@dataclass(frozen=True)
class TcpSettings:
    """Settings written to /proc/sys/net/ipv4 of a namespace."""

    receive_bytes: int  # fixed, without auto-tuning
    send_bytes: int
    window_scaling: bool = True  # False: no window exceeds 65535 bytes
    congestion: str = "reno"
    mtu_bytes: int = _MTU_BYTES


def tcp_settings(
    network: Network, bytes_scale: float, windows: Windows, tuning: NetworkTuning
) -> TcpSettings:
    """Return the settings of a VM.

    "paced": buffers so large that the switch limits every stream. "kernel": by default the unscaled window, which
    emulates a default kernel's at `networks.kernel_bytes_scale`; "wan" widens it as much as the tuning does on a real VM.
    """
    if windows == "paced":
        window_bytes = network.window_bytes() / bytes_scale
        return TcpSettings(
            max(65536, int(_RECEIVE_WINDOWS * window_bytes)), max(65536, int(_SEND_WINDOWS * window_bytes))
        )
    if tuning == "default":
        send_bytes = _SEND_WINDOWS * UNSCALED_WINDOW_BYTES
        return TcpSettings(_PLENTY_BYTES, send_bytes, window_scaling=False, mtu_bytes=KERNEL_MTU_BYTES)
    window_bytes = window_factor(tuning) * UNSCALED_WINDOW_BYTES
    return TcpSettings(int(2 * window_bytes), int(window_bytes), mtu_bytes=KERNEL_MTU_BYTES)


def vm_limit_share(tcp: TcpSettings) -> float:
    """Factor (below 1) from a VM's limit in whole packets of 1500 bytes to one for the same payload in these packets."""
    return (1 - _HEADERS_BYTES / _MTU_BYTES) / (1 - _HEADERS_BYTES / tcp.mtu_bytes)


def store_settings() -> TcpSettings:
    """Return the settings of the object store, which is limited only by the switch."""
    return TcpSettings(_STORE_BUFFER_BYTES, _STORE_BUFFER_BYTES)
