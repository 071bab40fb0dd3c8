"""`kill -9` in the middle of a run: of a peer, the controller, Ray, the switch, the object store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from running import Running, orch, wait_for

from metrics.store import RunStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture
def run(clean_home: Path):
    running = Running(
        clean_home, "local-2", "--set", "measure.epochs=12", "--set", "swarm.averaging_timeout_s=20",
        "--set", "peers.us.replace.backoff_s=1", "--set", "peers.eu.replace.backoff_s=1",
    )  # fmt: skip
    yield running
    running.close()


def test_killed_peer_is_replaced(run: Running):
    run.wait_for_epoch(2)
    victim = next(vm for vm in run.host()["vms"] if "-eu-0-" in vm["vm"])
    os.kill(victim["pid"], signal.SIGKILL)
    code, summary = run.finish()
    assert code == 0, run.stderr.read_text()
    assert {p["slot"]: p["vms"] for p in summary["peers"]} == {"us-0": 1, "eu-0": 2}
    with RunStore.open_reader(run.folder / "run.db") as store:
        joined = [row for row in store.records("epochs") if row.vm.endswith("-eu-0-1")]
    assert joined, "the replacement took part in no round"
    story = orch("why", run.run_id, "eu-0").stdout
    assert "killed by signal 9" in story


def test_killed_controller_is_attached_again(run: Running):
    run.wait_for_epoch(2)
    vms = {vm["vm"]: vm["pid"] for vm in run.host()["vms"]}
    (controller,) = run.pids("ray::Controller")
    os.kill(controller, signal.SIGKILL)
    run.process.wait(60)
    attached = orch("attach", run.run_id, timeout_s=240)
    assert attached.returncode == 0, attached.stderr
    with RunStore.open_reader(run.folder / "run.db") as store:
        assert store.meta("status") == "done"
        assert {row.vm for row in store.records("vms")} == set(vms) - {"monitor"}
        epochs = [(row.vm, row.epoch) for row in store.records("epochs")]
    assert len(epochs) == len(set(epochs))


def test_killed_ray_is_started_again(run: Running):
    run.wait_for_epoch(2)
    for pid in run.pids("gcs_server") + run.pids("raylet"):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run.process.wait(90)
    attached = orch("attach", run.run_id, timeout_s=240)
    assert attached.returncode == 0, attached.stderr
    with RunStore.open_reader(run.folder / "run.db") as store:
        assert store.meta("status") == "done"
        assert len(store.records("vms")) == 2


def test_killed_store_comes_back(run: Running):
    run.wait_for_epoch(2)
    for pid in run.pids("swift-"):
        os.kill(pid, signal.SIGKILL)
    wait_for("the store to come back", lambda: run.pids("swift-proxy-server"), 30)
    code, summary = run.finish()
    assert code == 0, run.stderr.read_text()
    assert summary["status"] == "done"
    assert {p["vms"] for p in summary["peers"]} == {1}


def test_killed_switch_ends_the_run_cleanly(run: Running):
    run.wait_for_epoch(2)
    os.kill(run.host()["switch_pid"], signal.SIGKILL)
    code, _ = run.finish(90)
    assert code == 1
    said = run.stderr.read_text()
    assert "switch" in said
    assert "Traceback" not in said
