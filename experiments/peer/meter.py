"""Egress by destination, from the kernel's counters of this VM's TCP sockets."""

from __future__ import annotations

__all__ = ["EgressMeter"]


class EgressMeter:
    """IP bytes sent by destination address, cumulative. Start it inside the VM's network namespace."""

    warnings: list[str]
    tail: str  # "counted": bytes sent between the last read and a socket's end are counted; "unknown"

    def __init__(self, period_s: float = 1.0) -> None:
        """Starts a daemon thread. Raises InetDiagError when the kernel gives no socket counters."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, int]:
        """Read now: IP bytes (headers, retransmissions) by destination address since start, loopback left out."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the thread and closes the sockets."""
        raise NotImplementedError
