"""What the owner of a run does to it, or the machine does: it is taken down while it starts, its database is
overwritten, its disk fills up. Nothing may be left in EC2, and what is printed has to be true."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fate import instances
from machine import clusters, in_ec2
from running import Running, orch, wait_for

from cloud.sky import records
from orchestrator.controller.actor import controller_alive

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1500)]

TWIN = str(Path(__file__).with_name("twin.yaml"))


@pytest.fixture
def launch(clean_home: Path) -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def begin(*options: str) -> Running:
        begun.append(Running(clean_home, TWIN, "--on", "sky", *options))
        return begun[-1]

    yield begin
    for running in begun:
        running.close(600)


def stays_empty(for_s: float) -> None:
    """Whatever a launch that was given up may still make, it does not."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert instances(up=True) == []
        time.sleep(1)
    assert (in_ec2(), clusters()) == ([], [])


def test_taken_down_while_it_starts(launch: Callable[..., Running]):
    """Once before it has a controller, once while SkyPilot rents its first VMs."""
    first = launch()
    down = orch("down", first.run_id, timeout_s=500)
    assert down.returncode == 0, down.stderr
    assert "nothing is left" in down.stderr
    code, _ = first.finish(120)
    assert code in (0, 3), first.stderr.read_text()
    stays_empty(20)
    shutil.rmtree(first.folder)  # `Running` takes the first run that it finds

    second = launch()
    wait_for("SkyPilot to be asked", lambda: records.read_all(second.folder / "sky"), 300)
    down = orch("down", second.run_id, timeout_s=500)
    assert down.returncode == 0, down.stderr
    second.finish(120)
    stays_empty(30)


@pytest.mark.soak_cloud
def test_the_database_is_overwritten_then_reaped(launch: Callable[..., Running]):
    run = launch("--set", "measure.epochs=200")
    run.wait_for_epoch(2, 600)
    for path in run.folder.glob("run.db*"):
        path.write_bytes(os.urandom(50_000))
    wait_for("the launch to end", lambda: run.process.poll() is not None, 300)
    assert run.process.returncode != 0
    wait_for("all VMs to end", lambda: instances(up=True) == [], 300)
    wait_for("the controller to end", lambda: not controller_alive(run.folder), 120)
    reaped = orch("reap", timeout_s=500)
    assert reaped.returncode == 0, reaped.stdout + reaped.stderr
    assert run.run_id in reaped.stderr
    assert "its cost is unknown" in reaped.stderr
    assert (in_ec2(), clusters()) == ([], [])


@pytest.fixture
def small_disk(clean_home: Path) -> Iterator[Path]:
    """The home on a disk of its own."""
    clean_home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "none", clean_home], check=True)
    yield clean_home
    subprocess.run(["umount", "-l", clean_home], check=True)


@pytest.mark.soak_cloud
def test_the_disk_fills_up_in_mid_run(small_disk: Path, launch: Callable[..., Running]):
    run = launch("--set", "measure.epochs=200")
    run.wait_for_epoch(2, 600)
    with (small_disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1_000_000))
        except OSError:
            pass
    wait_for("all VMs to end", lambda: instances(up=True) == [], 300)
    code, _ = run.finish(300)
    said = run.stderr.read_text()
    assert code == 1, said
    assert "no space left on the disk" in said
    (small_disk / "filler").unlink()
    down = orch("down", run.run_id, timeout_s=300)
    assert down.returncode == 0, down.stderr
    assert (in_ec2(), clusters()) == ([], [])
