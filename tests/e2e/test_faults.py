"""`kill -9` in the middle of a run: of the store, the monitor, the controller, Ray; Ctrl-C. (A peer, the switch:
test_canary.py.)"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import Running, orch, wait_for

from metrics.store.database import RunStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Short epochs, few of them, few shards: what is tested is what happens after the fault, not the learning.
_SHORT = {
    "swarm.target_batch_size": "640",
    "swarm.matchmaking_time_s": "1",
    "swarm.averaging_timeout_s": "10",
    "data.shards": "s3://digits/train-{000000..000003}.tar",
    "measure.epochs": "7",
}


@pytest.fixture
def launch(clean_home: Path) -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def begin(**changes: str) -> Running:
        options = _SHORT | {key.replace("__", "."): value for key, value in changes.items()}
        settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        begun.append(Running(clean_home, "local-2", *settings))
        begun[-1].wait_for_epoch(1)
        return begun[-1]

    yield begin
    for running in begun:
        running.close()


def test_killed_one_after_the_other_each_comes_back(launch: Callable[..., Running]):
    """One run for the store, the monitor, the controller and Ray. The cloud's host starts the store again, the
    controller the monitor, Ray the controller: whoever watches sees nothing of it. Ray itself nobody starts again but
    `orch attach`, which the watcher is told.

    Peers publish their last three epochs, and on a busy machine the next monitor took more than 13 s: so epochs of 7 s.
    The shards are new to their peers: no cache helps.
    """
    run = launch(
        data__shards="s3://digits/train-{000000..000031}.tar",
        swarm__target_batch_size="3840",
        measure__epochs="8",
    )
    peers = {vm["vm"]: vm["pid"] for vm in run.host()["vms"] if vm["vm"] != "monitor"}
    for pid in run.pids("_swift_child.py"):
        os.kill(pid, signal.SIGKILL)
    store_file = run.folder / "cloud" / "store" / "store.json"
    wait_for("the store to come back", lambda: json.loads(store_file.read_text())["restarts"] >= 1, 30)
    run.wait_for_epoch(run.epoch() + 2)

    monitor = next(vm for vm in run.host()["vms"] if vm["vm"] == "monitor")
    os.kill(monitor["pid"], signal.SIGKILL)
    wait_for("the next monitor", lambda: any(vm["vm"] == "monitor-1" for vm in run.host()["vms"]), 60)
    run.wait_for_epoch(run.epoch() + 1)

    (controller,) = run.pids("ray::ControllerActor")
    os.kill(controller, signal.SIGKILL)
    wait_for("the next controller", lambda: run.pids("ray::ControllerActor") not in ([], [controller]), 60)
    run.wait_for_epoch(run.epoch() + 1)
    assert run.process.poll() is None, run.stderr.read_text()

    for pid in run.pids("gcs_server") + run.pids("raylet"):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    code, _ = run.finish(60)
    assert code == 1
    assert f"orch attach {run.run_id}" in run.stderr.read_text()
    attached = orch("attach", run.run_id, timeout_s=150)
    assert attached.returncode == 0, attached.stderr
    assert "monitor-1 goes on" in orch("why", run.run_id).stdout
    _check_nothing_lost_or_doubled(run, peers)


def _check_nothing_lost_or_doubled(run: Running, peers: dict[str, int]) -> None:
    vms = {vm["vm"]: vm["pid"] for vm in run.host()["vms"] if not vm["vm"].startswith("monitor")}
    assert vms == peers
    with RunStore.open_reader(run.folder / "run.db") as store:
        assert store.meta("status") == "done"
        assert {row.vm for row in store.records("vms")} == set(peers)
        epochs = [(row.vm, row.epoch) for row in store.records("epochs")]
        last = store.meta("epochs") + store.meta("warmup_epochs")
    assert sorted(epochs) == [(vm, epoch) for vm in sorted(peers) for epoch in range(1, last + 1)]


def test_interrupt_off_a_terminal_takes_the_run_down(launch: Callable[..., Running]):
    run = launch()
    run.process.send_signal(signal.SIGINT)
    code, _ = run.finish(60)
    said = run.stderr.read_text()
    assert code == 130, said
    assert "nothing is left" in said
    assert "Traceback" not in said
    with RunStore.open_reader(run.folder / "run.db") as store:
        assert store.meta("status") == "stopped"
