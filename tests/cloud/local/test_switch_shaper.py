"""When a packet is due: no socket, no clock."""

from __future__ import annotations

import struct

import pytest

from cloud.local.network.shaper import STORE_STREAM_BPS, Node, Shaper
from cloud.networks import Network, NetworkError

US, EU, ASIA = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b", "gcp/asia-east1"
NETWORK = Network.load("study-2023-04")
EU_WAY = 0.1031 / 2


def packet(payload: int, port: int = 1, flags: int = 0x10, protocol: int = 6) -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 52 + payload, 0, 0, 64, protocol, 0, bytes(4), bytes(4))
    tcp = struct.pack("!HHIIBBHHH12x", port, 2, 0, 0, 8 << 4, flags, 0, 0, 0)
    return ip + tcp + bytes(payload)


def shaper(bytes_scale: float = 100, time_scale: float = 1, vm_bps: float = 1e15) -> Shaper:
    made = Shaper(NETWORK, bytes_scale, time_scale, vm_bps)
    made.add(1, Node("a", "vm", US))
    made.add(2, Node("b", "vm", EU))
    made.add(3, Node("c", "vm", US))
    made.add(8, Node("store", "store", EU))
    made.add(9, Node("monitor", "monitor", EU))
    return made


def test_an_acknowledgement_takes_half_the_round_trip_and_overtakes_data():
    made = shaper()
    for _ in range(100):
        last = made.due(0.0, 1, 2, packet(1448))
    assert last > 0.5
    assert made.due(0.0, 1, 2, packet(0)) == pytest.approx(EU_WAY)


def test_a_fin_does_not_overtake_data():
    made = shaper()
    last = [made.due(0.0, 1, 2, packet(1448)) for _ in range(10)][-1]
    assert made.due(0.0, 1, 2, packet(0, flags=0x11)) >= last


@pytest.mark.parametrize(("bytes_scale", "time_scale"), [(1, 1), (100, 1), (20, 2)])
def test_a_streams_payload_has_the_files_rate_at_the_runs_scales(bytes_scale, time_scale):
    made = shaper(bytes_scale, time_scale)
    arrivals = [made.due(0.0, 1, 2, packet(1448)) for _ in range(1001)]
    bps = 1000 * 1448 * 8 / (arrivals[-1] - arrivals[0])
    assert bps * bytes_scale / time_scale == pytest.approx(210e6)
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == pytest.approx(EU_WAY / time_scale, abs=0.006)


def test_streams_are_paced_apart_and_the_two_directions_too():
    made = shaper()
    for _ in range(100):
        made.due(0.0, 1, 2, packet(1448, port=1))
    fresh = 1448 * 8 / 2.1e6 + EU_WAY
    assert made.due(0.0, 1, 2, packet(1448, port=7)) == pytest.approx(fresh, rel=1e-4)
    assert made.due(0.0, 2, 1, packet(1448, port=1)) < fresh


def test_a_vms_limit_holds_over_all_its_streams_and_counts_whole_packets():
    made = shaper(vm_bps=1.1e9)
    arrivals = [made.due(0.0, 1, 3, packet(1448, port=k)) for k in range(1001)]
    assert 1000 * 1500 * 8 / (arrivals[-1] - arrivals[0]) == pytest.approx(11e6, rel=1e-3)


def test_a_slow_stream_does_not_hold_up_another_destination():
    made = shaper(vm_bps=1.1e9)
    for _ in range(100):
        made.due(0.0, 1, 2, packet(1448))
    assert made.due(2.0, 1, 3, packet(1448)) < 2.01


def test_the_store_is_not_byte_scaled_and_the_monitor_is_not_paced():
    made = shaper(bytes_scale=1000, vm_bps=1.1e9)
    from_store = [made.due(0.0, 8, 1, packet(1448)) for _ in range(101)]
    assert 100 * 1448 * 8 / (from_store[-1] - from_store[0]) == pytest.approx(STORE_STREAM_BPS)
    assert {made.due(0.0, 1, 9, packet(1448)) for _ in range(50)} == {EU_WAY}


def test_idle_time_gives_no_bandwidth_credit():
    made = shaper()
    made.due(0.0, 1, 2, packet(1448))
    first = made.due(60.0, 1, 2, packet(1448))
    assert made.due(60.0, 1, 2, packet(1448)) - first == pytest.approx(1448 * 8 / 2.1e6)


def test_many_short_connections_are_forgotten_without_losing_a_busy_one():
    made = shaper()
    busy = [made.due(0.0, 1, 2, packet(1448, port=60000)) for _ in range(400)][-1]
    for k in range(9000):
        made.due(k / 1e4, 1, 2, packet(10, port=k))
    assert made.due(0.9, 1, 2, packet(1448, port=60000)) > busy
    assert len(made._stream_free) < 5000


def test_a_place_the_file_does_not_know_is_refused_and_nothing_is_added():
    made = shaper()
    with pytest.raises(NetworkError):
        made.add(5, Node("e", "vm", "aws/us-west-2"))
    assert 5 not in made._nodes
