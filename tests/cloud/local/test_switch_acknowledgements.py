"""The switch's packets keep an acknowledgement that their end does not refuse."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from cloud.local.network.acknowledgements import Acknowledgements

_WORD = st.integers(0, 2**32 - 1)


def packet(
    acknowledged: int, payload: bytes = b"", *, flags: int = 0x10, port: int = 31000, kind: int = 6
) -> bytes:
    tcp = struct.pack("!HHIIBBHHH", port, 5, 7, acknowledged, 5 << 4, flags, 65535, 0, 0)
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0, 64, kind, 0, b"\x0a\x4d\0\2", b"\x0a\x4d\0\3"
    )
    return ip + tcp[:16] + struct.pack("!H", _checksum(ip, tcp + payload)) + tcp[18:] + payload


def _checksum(ip: bytes, segment: bytes) -> int:
    data = ip[12:20] + struct.pack("!HH", ip[9], len(segment)) + segment + b"\0" * (len(segment) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@given(_WORD, st.integers(1, 2**31 - 1), st.binary(max_size=50))
def test_overtaken_data_carry_the_newest_acknowledgement(old: int, further: int, payload: bytes) -> None:
    known = Acknowledgements()
    new = (old + further) % 2**32
    assert known.delivered(1, 2, packet(new)) == packet(new)
    late = known.delivered(1, 2, packet(old, payload))
    wanted = packet(new, payload)
    assert late[:36] + late[38:] == wanted[:36] + wanted[38:]
    assert {late[36:38], wanted[36:38]} <= {wanted[36:38], b"\0\0", b"\xff\xff"}  # 0 has two forms


@given(_WORD, st.integers(0, 2**31 - 1), st.binary(max_size=50))
def test_packets_in_order_are_unchanged(first: int, further: int, payload: bytes) -> None:
    known = Acknowledgements()
    known.delivered(1, 2, packet(first, payload))
    next_one = packet((first + further) % 2**32, payload)
    assert known.delivered(1, 2, next_one) == next_one


def test_other_streams_directions_and_protocols_have_their_own() -> None:
    known = Acknowledgements()
    known.delivered(1, 2, packet(1000))
    for late in (packet(10, port=31001), packet(10, kind=17)):
        assert known.delivered(1, 2, late) == late
    assert known.delivered(2, 1, packet(10)) == packet(10)


def test_new_connection_with_the_same_ports_starts_fresh() -> None:
    for opening in (0x02, 0x04, 0x12, 0x14):
        known = Acknowledgements()
        known.delivered(1, 2, packet(1000))
        known.delivered(1, 2, packet(0, flags=opening))
        assert known.delivered(1, 2, packet(10)) == packet(10)
