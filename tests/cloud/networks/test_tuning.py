"""`network_tuning: wan` in the script of a VM: valid shell, and harmless where the kernel refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cloud.networks.tuning import SYSCTLS
from cloud.provider import LaunchRequest, Offer
from cloud.sky.vm.bootstrap import run_script, tuning_block

OFFER = Offer("gcp/us-central1/us-central1-a", "n1-standard-8", "T4:1", True, None, "")


def _request(**changes: str) -> LaunchRequest:
    return LaunchRequest("r-a-0", OFFER, "programs:tell", {}, **changes)  # pyright: ignore[reportArgumentType]


def _run(folder: Path, sudo: str) -> tuple[int, str]:
    (folder / "bin").mkdir()
    (folder / "bin" / "sudo").write_text(f"#!/bin/sh\n{sudo}\n")
    (folder / "bin" / "sudo").chmod(0o755)
    (folder / "run.sh").write_text(f"set -u\nexec 9> .lock\n{tuning_block('wan')}true\n")
    path = f"{folder}/bin:/usr/bin:/bin"
    done = subprocess.run(["bash", "run.sh"], cwd=folder, env={"PATH": path}, check=False, timeout=20)
    return done.returncode, (folder / "setup.log").read_text()


@pytest.mark.parametrize("tuning", ["default", "wan"])
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_whole_script_is_valid_shell(tuning, shell, tmp_path):
    text = run_script(_request(network_tuning=tuning), "orch-0-py3-none-any.whl", "0" * 64)
    (tmp_path / "run.sh").write_text(text)
    subprocess.run([shell, "-n", tmp_path / "run.sh"], check=True, timeout=20)
    assert ("tcp_rmem" in text) == ("bbr" in text) == (tuning == "wan")
    if tuning == "wan":
        assert text.index("tune net.ipv4") < text.index("bash setup.sh"), "what the user sets comes last"


def test_kernel_settings_are_applied_with_sudo(tmp_path):
    code, log = _run(tmp_path, 'echo "asked: $*"')
    assert code == 0
    for name, value in SYSCTLS:
        assert f"asked: -n sysctl -qw {name}={value}" in log
    assert "asked: -n modprobe tcp_bbr" in log
    has_bbr = "bbr" in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    assert ("tcp_congestion_control=bbr" in log) == has_bbr
    assert (
        f"orch: network_tuning: tcp_rmem is {Path('/proc/sys/net/ipv4/tcp_rmem').read_text().strip()}" in log
    )


def test_rejected_kernel_setting_is_logged_and_ignored(tmp_path):
    code, log = _run(tmp_path, 'echo "sudo: a password is required" >&2; exit 1')
    assert code == 0
    for name, value in SYSCTLS:
        assert f"orch: network_tuning: this VM rejects {name}={value}" in log


def test_the_untuned_script_is_untouched():
    assert tuning_block("default") == ""
