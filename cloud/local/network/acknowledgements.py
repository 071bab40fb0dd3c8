"""Prevent packets from being dropped because the switch delivered newer acknowledgements before them. Pure.

The switch lets bare acknowledgements pass data that waits for its VM's limit (`cloud.local.network.shaper`). On a real VM
that limit is above TCP: data that waits there is not in packets yet, and gets its acknowledgement number when it is
sent. Here, the waiting packets carry the number from when they were queued. Linux drops a packet with its data, as
forged, if it acknowledges more than the largest window less than what is already known (RFC 5961, section 5.2). With
window scaling that is far; without it, 64 KiB, any queue suffices: on eight VMs of one zone, two packets in a hundred
were dropped, and averaging took three times as long.
"""

from __future__ import annotations

# Streams remembered before all are dropped; a stream is added again with its next packet.
_FORGET_ABOVE = 4096
_TCP, _ACK, _SYN_OR_RST = 6, 0x10, 0x06


class Acknowledgements:
    """The newest acknowledgement delivered in each direction of each TCP connection."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int, bytes], int] = {}

    def delivered(self, source: int, target: int, packet: bytes) -> bytes:
        """Return an IPv4 packet as it has to be delivered now: with the newest acknowledgement that its receiver has seen.

        The receiver learns nothing earlier that way. The length and all other fields stay; the TCP checksum is adjusted
        (RFC 1624).
        """
        if packet[9] != _TCP:
            return packet
        tcp = (packet[0] & 15) * 4
        stream = (source, target, packet[tcp : tcp + 4])
        flags = packet[tcp + 13]
        if flags & _SYN_OR_RST or not flags & _ACK:
            self._newest.pop(stream, None)
            return packet
        acknowledged = int.from_bytes(packet[tcp + 8 : tcp + 12])
        newest = self._newest.get(stream, acknowledged)
        if (newest - acknowledged) & 0xFFFFFFFF == 0 or (newest - acknowledged) & 0x80000000:
            if len(self._newest) > _FORGET_ABOVE:
                self._newest.clear()
            self._newest[stream] = acknowledged
            return packet
        checksum = int.from_bytes(packet[tcp + 16 : tcp + 18])
        changed = newest.to_bytes(4)
        adjusted = _adjusted(checksum, acknowledged, newest).to_bytes(2)
        return packet[: tcp + 8] + changed + packet[tcp + 12 : tcp + 16] + adjusted + packet[tcp + 18 :]


def _adjusted(checksum: int, old: int, new: int) -> int:
    """Internet checksum after one aligned 32-bit word has changed (RFC 1624, equation 3)."""
    total = (
        (checksum ^ 0xFFFF)
        + ((old >> 16) ^ 0xFFFF)
        + ((old & 0xFFFF) ^ 0xFFFF)
        + (new >> 16)
        + (new & 0xFFFF)
    )
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
