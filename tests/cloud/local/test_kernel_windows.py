"""The window behind the paper's single-stream figures, and the TCP settings that emulate it."""

from __future__ import annotations

import pytest

from cloud.local.network.shaper import Node, Shaper
from cloud.local.windows import tcp_settings
from cloud.networks import Network
from cloud.networks.tuning import BUFFER_BYTES, DEFAULT_RECEIVE_BYTES
from cloud.networks.windows import (
    KERNEL_MTU_BYTES,
    UNSCALED_WINDOW_BYTES,
    default_window_bytes,
    kernel_bytes_scale,
)

STUDY = Network.load("study-2023-04")
US, EU = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"
IPERF_S = 10.0  # cirquit/hivemind-multi-cloud, artifacts/networking/network-stats.sh
FIRST_BYTES = 10 * 1408  # ten segments at Google Cloud's MTU of 1460


def _mean_bps(window_bytes: float, rtt_s: float) -> float:
    """A short test's mean: slow start doubles each round trip until the window is full."""
    sent, at_s, flight = 0.0, 0.0, float(FIRST_BYTES)
    while flight < window_bytes and at_s < IPERF_S:
        sent, at_s, flight = sent + flight, at_s + rtt_s, flight * 2
    return (sent + (IPERF_S - at_s) / rtt_s * window_bytes) * 8 / IPERF_S


def test_one_window_explains_all_twelve_long_figures():
    long = [path for path in STUDY.paths.values() if path.rtt_s > 0.1]
    assert len(long) == 12
    off = [_mean_bps(default_window_bytes(), path.rtt_s) / path.stream_bps - 1 for path in long]
    assert max(map(abs, off)) < 0.035
    assert max(off) - min(off) < 0.035, "no pair has a window of its own"
    assert default_window_bytes() == pytest.approx(DEFAULT_RECEIVE_BYTES / 2, rel=0.1)


def test_unscaled_window_emulates_the_papers_window():
    carried = kernel_bytes_scale() * UNSCALED_WINDOW_BYTES
    assert default_window_bytes() < carried < 1.05 * default_window_bytes()
    assert UNSCALED_WINDOW_BYTES <= 65535 < UNSCALED_WINDOW_BYTES + KERNEL_MTU_BYTES


def test_tuning_widens_the_windows_as_much_as_on_a_vm():
    scale = kernel_bytes_scale()
    untuned = tcp_settings(STUDY, scale, "kernel", "default")
    tuned = tcp_settings(STUDY, scale, "kernel", "wan")
    assert not untuned.window_scaling
    assert untuned.receive_bytes >= 8 * UNSCALED_WINDOW_BYTES, "the buffer must not be what limits"
    assert tuned.window_scaling
    wider = BUFFER_BYTES / DEFAULT_RECEIVE_BYTES
    assert tuned.send_bytes / UNSCALED_WINDOW_BYTES == pytest.approx(wider, rel=1e-3)
    assert tuned.receive_bytes >= 2 * tuned.send_bytes - 2


def test_kernel_windows_leave_streams_to_the_kernel_but_not_the_vms_limit():
    made = Shaper(STUDY, 45.6, 1.0, 1.1e9, paced=False)
    made.add(1, Node("a", "vm", US))
    made.add(2, Node("b", "vm", EU))
    made.add(3, Node("store", "store", EU))
    size = 1500
    packet = (
        bytes([0x45, 0])
        + bytes(7)
        + bytes([6])
        + bytes(10)
        + bytes(12)
        + bytes([0x80, 0x10])
        + bytes(size - 34)
    )
    last = [made.due(0.0, 1, 2, packet) for _ in range(1000)][-1]
    assert last == pytest.approx(0.1031 / 2 + 1000 * size * 8 / (1.1e9 / 45.6)), "the VM's limit"
    alone = made.due(100.0, 1, 2, packet)
    assert alone == pytest.approx(100 + 0.1031 / 2, abs=0.001), "the first packet waits for no pace"
    first, second = made.due(200.0, 3, 1, packet), made.due(200.0, 3, 1, packet)
    assert second - first > 0.0001, "the store's streams are paced as ever"
