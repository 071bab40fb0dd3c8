"""The report's first line gives the limit of the streams and whether the VMs' kernels were tuned."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.report.content import basis_line


def _line(target: str, emulated: bool, network: dict[str, Any] | None) -> str:
    scales = {"bytes": 45.6, "samples": 8, "time": 1}
    summary = {"target": target, "emulated": emulated, "network": network, "scales": scales}
    return basis_line({**summary, "model": {"name": "RoBERTaXLM", "ran": "digits"}})


@pytest.mark.parametrize(
    ("tuning", "window_bytes", "shown"), [("default", 2.97e6, "3.0"), ("wan", 31.7e6, "31.7")]
)
def test_kernel_windows_are_shown_with_their_size(tuning, window_bytes, shown):
    network = {"tuning": tuning, "windows": "kernel", "window_bytes": window_bytes}
    line = _line("local", True, network)
    assert f"by its VM's own TCP window (network_tuning: {tuning}, {shown} MB at full size)" in line


@pytest.mark.parametrize("network", [None, {"tuning": "default", "windows": "paced", "window_bytes": None}])
def test_basis_line_without_kernel_windows(network):
    assert "distance and bandwidth by a user-space switch" in _line("local", True, network)


@pytest.mark.parametrize("emulated", [True, False])
@pytest.mark.parametrize("tuning", ["default", "wan"])
def test_tuned_rented_vms_are_marked(emulated, tuning):
    line = _line("sky", emulated, {"tuning": tuning, "windows": "", "window_bytes": None})
    assert ("network_tuning: wan" in line) == (tuning == "wan")


def test_basis_line_of_a_task_on_the_hosts_cpu():
    model = {"name": "my_task:build", "ran": "my_task:build", "sha256": "0123456789abcdef" * 4}
    summary = {
        "target": "local",
        "emulated": True,
        "accelerators": "host",
        "network": None,
        "scales": {"bytes": 1, "samples": 1, "time": 1},
        "model": model,
    }
    line = basis_line(summary)
    assert "calculation times are those of this machine's CPU, not of the accelerators" in line
    assert "(my_task:build, SHA-256 0123456789ab, was trained); nothing is scaled" in line
    assert "padded" not in line
    rented = basis_line({**summary, "target": "sky", "emulated": False, "accelerators": "real"})
    assert "my_task:build, SHA-256 0123456789ab, was trained" in rented
