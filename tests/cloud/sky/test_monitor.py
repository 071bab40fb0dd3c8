"""The monitor of a run on rented VMs is a process of this machine, and an API server is ended by its session only."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cloud.provider import LaunchRequest, Offer
from cloud.sky import SkyCloud, monitor
from cloud.sky.skypilot import server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

_PROGRAM = "runpy:run_path"  # runs config.json, which is a dictionary of Python's too: it ends at once


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "home" / "runs" / "r"


def request(vm: str, program: str) -> LaunchRequest:
    offer = Offer("aws/us-west-2", "monitor", "CPU:1", False, None, "")
    return LaunchRequest(vm, offer, program, {"run_key": "r"}, {"identity.key": b"secret"})


def test_a_monitor_is_started_once_seen_and_ended(run: Path, monkeypatch: pytest.MonkeyPatch):
    (run / "monitor").mkdir(parents=True)
    (run / "monitor" / "stays.py").write_text("import time\ndef stay(config):\n    time.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(run / "monitor"))
    cloud = SkyCloud(run)
    cloud.request(request("monitor", "stays:stay"))
    cloud.request(request("monitor", "stays:stay"))
    [seen] = cloud.observe()
    assert (seen.vm, seen.state, seen.address) == ("monitor", "running", None)
    assert seen.pid is not None
    end = time.monotonic() + 20
    while os.getsid(seen.pid) != seen.pid:  # it outlives the process that started it
        assert time.monotonic() < end
    assert (run / "monitor" / "identity.key").stat().st_mode & 0o777 == 0o600
    cloud.terminate("monitor")
    [seen] = cloud.observe()
    assert (seen.state, seen.pid) == ("terminated", None)
    assert seen.ended_at_s is not None
    assert cloud.collect("monitor") == str(run / "monitor")


def test_a_monitor_that_died_has_failed_and_the_next_has_its_folder(run: Path):
    cloud = SkyCloud(run)
    cloud.request(request("monitor", _PROGRAM))
    end = time.monotonic() + 20
    while (first := cloud.observe()[0]).state == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (first.state, first.ended_at_s is not None) == ("failed", True)
    cloud.request(request("monitor-1", _PROGRAM))
    assert [o.vm for o in cloud.observe()] == ["monitor", "monitor-1"]
    assert monitor.end(run) == []


def test_only_leftovers_of_a_dead_api_server_are_ended(tmp_path: Path):
    """A session as SkyPilot's server makes one: its first process dead, an executor and a child of it alive."""
    inner = f"(exec -a multiprocessing-child sleep 60) & echo x > {tmp_path}/child; wait"
    outer = f"exec -a SkyPilot:executor:long bash -c {shlex.quote(inner)}"
    leader = subprocess.Popen(
        ["bash", "-c", f"bash -c {shlex.quote(outer)} & sleep 60"], start_new_session=True
    )
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        end = time.monotonic() + 20
        while not (tmp_path / "child").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        before = server._members(leader.pid, trackers=False)
        server._end_orphans(tmp_path)
        assert server._members(leader.pid, trackers=False) == before, (
            "its server lives: nothing of it is touched"
        )
        leader.kill()
        leader.wait()
        server._end_orphans(tmp_path)
        assert server._members(leader.pid, trackers=False) == []
        assert other.poll() is None
    finally:
        for pid in [other.pid, leader.pid, *server._members(leader.pid, trackers=False)]:
            if pid != leader.pid or leader.poll() is None:
                os.kill(pid, signal.SIGKILL)
        other.wait()
        leader.wait()


def test_a_monitor_whose_starter_is_killed_is_found_and_ended(run: Path, monkeypatch: pytest.MonkeyPatch):
    (run / "monitor").mkdir(parents=True)
    (run / "monitor" / "stays.py").write_text("import time\ndef stay(config):\n    time.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(run / "monitor"))

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(monitor, "_await", killed)  # the first thing after the process was started
        with pytest.raises(KeyboardInterrupt):
            monitor.start(run, request("monitor", "stays:stay"))
    monitor.start(run, request("monitor", "stays:stay"))  # a repeated request does not start another
    assert monitor.end(run) == []
    [seen] = monitor.observe(run, 0.0)
    assert (seen.vm, seen.state, seen.pid) == ("monitor", "terminated", None)
