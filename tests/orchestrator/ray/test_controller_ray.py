"""The controller on a real Ray with a toy provider: kill, attach, stop; nothing is left."""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from experiments.parse.load import find, load
from metrics.store.database import FencedError, RunStore
from orchestrator.controller import client
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare
from orchestrator.ray.processes import identity, marked
from orchestrator.ray.session import RaySession, connect, disconnect, ensure_ray, read_session

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


def until(holds, limit_s: float = 30.0):
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited {limit_s} s"
        time.sleep(0.1)
    return found


def prepared(home: Path, run_id: str) -> Path:
    spec = load("local-2")
    return prepare(
        approved_plan(spec, "local", {}, cores=2),
        find("local-2"),
        run_id,
        home,
        now_s=time.time(),
        provider="tests_toy:ToyCloud",
    )


def listeners(pids) -> set[str]:
    """Addresses (hexadecimal, as in /proc) on which these processes listen for TCP connections."""
    sockets = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(fd))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = row.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                found.add(local.partition(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def controller_pid(folder: Path) -> int:
    return json.loads((folder / "controller.json").read_text())["pid"]


def served(home: Path, run_id: str) -> dict[str, float]:
    """Prometheus metrics of the run's controller: the sum of the samples by metric."""
    url = client.snapshot(run_id, home)["metrics_url"]
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {f.name: sum(s.value for s in f.samples) for f in text_string_to_metric_families(text)}


def states(home: Path, run_id: str) -> set[str]:
    return {peer["state"] for peer in client.snapshot(run_id, home)["peers"]}


@pytest.mark.timeout(180)
def test_run_survives_controller_kill_attach_and_stop(tmp_path, monkeypatch):
    here = tmp_path / "lib"
    here.mkdir()
    (here / "tests_toy.py").write_text((Path(__file__).parents[1] / "toy.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    home = tmp_path / "home"
    run_id = "toy-20260101-0001"
    folder = prepared(home, run_id)
    session: RaySession | None = None
    try:
        monkeypatch.setenv("TOY_PROFILE", "of the run that began Ray")
        monkeypatch.setenv("TOY_OF_RAY", "1")
        ensure_ray(home)
        monkeypatch.setenv("TOY_PROFILE", "its own")
        monkeypatch.delenv("TOY_OF_RAY")
        run = client.launch(run_id, home)
        session = read_session(home)
        until(lambda: states(home, run_id) == {"TRAINING"})
        assert session is not None
        connect(session.address, home)
        heard = listeners([os.getpid(), *marked(session.temp, session.pid)])
        disconnect()
        assert heard
        assert heard <= LOOPBACK
        with pytest.raises(FencedError):
            RunStore.open_writer(folder / "run.db")
        first_url = client.snapshot(run_id, home)["metrics_url"]
        reported = served(home, run_id)
        assert reported["orch_run_info"] == 1
        assert reported["orch_peers"] == 2
        assert reported["orch_controller_tick_seconds"] > 0

        # the controller's worker dies: Ray starts it again, and the run goes on with the same VMs
        first = controller_pid(folder)
        os.kill(first, signal.SIGKILL)
        until(lambda: not identity(first))
        run = client.attach(run_id, home)
        until(lambda: controller_pid(folder) != first)
        assert run.wait(1.0) is None
        assert served(home, run_id)["orch_samples"] >= reported["orch_samples"]

        # the monitor dies: the next one is started
        toy = folder / "toy"
        monitor = json.loads((toy / "monitor.json").read_text())
        (toy / "monitor.json").write_text(json.dumps({**monitor, "state": "failed", "ended": time.time()}))
        until((toy / "monitor-1.json").exists)

        # Ray itself dies, and its holder with it: attaching starts another one
        for pid in marked(session.temp, session.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not client.controller_alive(folder))
        run = client.attach(run_id, home)
        second = read_session(home)
        assert second is not None
        assert second.temp != session.temp
        assert not Path(session.temp).exists()
        assert run.wait(1.0) is None
        assert states(home, run_id) == {"TRAINING"}

        last_url = client.snapshot(run_id, home)["metrics_url"]
        assert client.stop(run_id, home) == "stopped"
        until(lambda: client.snapshot(run_id, home)["metrics_url"] is None)
        for url in (first_url, last_url):  # each ended with its controller
            with pytest.raises(urllib.error.URLError):
                urllib.request.urlopen(url, timeout=5)
        assert client.down(run_id, home) == []
        assert client.reap(home).left == {}
        session = second
    finally:
        client.stop_ray(home)
    # also what the controllers asked for that Ray started again
    assert set((folder / "toy" / "profiles").read_text().splitlines()) == {"its own None"}
    requested = (folder / "toy" / "requests.log").read_text().split()
    assert sorted(set(requested)) == ["monitor", "monitor-1", f"{run_id}-eu-0-0", f"{run_id}-us-0-0"]
    with RunStore.open_reader(folder / "run.db") as store:
        assert {row.vm for row in store.records("vms")} == {f"{run_id}-eu-0-0", f"{run_id}-us-0-0"}
        assert all(row.ended_s is not None for row in store.records("vms"))
        seqs = [e.seq for e in store.records("events")]
        assert seqs == list(range(len(seqs)))
    assert not list((folder / "keys").rglob("*.key"))
    log = [json.loads(line) for line in (folder / "controller.log").read_text().splitlines()]
    assert {line["run"] for line in log} == {run_id}
    assert {"us-0", "eu-0"} <= {line["slot"] for line in log}
    assert marked(session.temp, session.pid) == []
    assert not Path(session.temp).exists()
    assert not (home / "ray.json").exists()
