"""`kill -9` in the middle of a run: of a peer, the monitor, the controller, Ray, the switch, the store; Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import Running, orch, wait_for

from metrics.store import RunStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Short epochs, few of them, few shards: what is tested is what happens after the fault, not the learning.
_SHORT = {
    "swarm.target_batch_size": "640",
    "swarm.matchmaking_time_s": "1",
    "swarm.averaging_timeout_s": "10",
    "data.shards": "s3://digits/train-{000000..000003}.tar",
    "measure.epochs": "7",
    "peers.us.replace.backoff_s": "1",
    "peers.eu.replace.backoff_s": "1",
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


def test_killed_peer_is_replaced(launch: Callable[..., Running]):
    run = launch(measure__epochs="10")
    victim = next(vm for vm in run.host()["vms"] if "-eu-0-" in vm["vm"])
    os.kill(victim["pid"], signal.SIGKILL)
    code, summary = run.finish()
    assert code == 0, run.stderr.read_text()
    assert {p["slot"]: p["vms"] for p in summary["peers"]} == {"us-0": 1, "eu-0": 2}
    with RunStore.open_reader(run.folder / "run.db") as store:
        epochs = store.records("epochs")
    joined = [row for row in epochs if row.vm.endswith("-eu-0-1")]
    assert any(row.group_size == 2 for row in joined), "the replacement took part in no round"
    losses = {row.epoch: row.loss for row in epochs if row.vm.endswith("-us-0-0")}
    assert all(row.loss < 1.5 * losses[row.epoch] + 0.5 for row in joined), "it learns as the others do"
    assert "killed by signal 9" in orch("why", run.run_id, "eu-0").stdout


def test_killed_monitor_and_store_come_back(launch: Callable[..., Running]):
    """Both in one run, one after the other. Peers publish their last three epochs, and on a busy machine the
    next monitor took more than 13 s: so epochs of 7 s. The shards are new to their peers: no cache helps."""
    run = launch(
        data__shards="s3://digits/train-{000000..000031}.tar",
        swarm__target_batch_size="3840",
        measure__epochs="6",
    )
    for pid in run.pids("_swift_child.py"):
        os.kill(pid, signal.SIGKILL)
    store_file = run.folder / "cloud" / "store" / "store.json"
    wait_for("the store to come back", lambda: json.loads(store_file.read_text())["restarts"] >= 1, 30)
    run.wait_for_epoch(run.epoch() + 2)
    monitor = next(vm for vm in run.host()["vms"] if vm["vm"] == "monitor")
    os.kill(monitor["pid"], signal.SIGKILL)
    code, summary = run.finish()
    assert code == 0, run.stderr.read_text()
    assert summary["status"] == "done"
    assert {p["vms"] for p in summary["peers"]} == {1}
    with RunStore.open_reader(run.folder / "run.db") as store:
        epochs = sorted((row.vm, row.epoch) for row in store.records("epochs"))
    vms = sorted({vm for vm, _ in epochs})
    assert epochs == [(vm, epoch) for vm in vms for epoch in range(1, 8)], (
        "an epoch was lost, or counted twice"
    )
    assert "monitor-1 goes on" in orch("why", run.run_id).stdout


def test_killed_controller_goes_on_and_killed_ray_is_started_again(launch: Callable[..., Running]):
    """One run for both. Ray starts the controller again: whoever watches sees nothing of it, and the journal is
    gone on with. Ray itself nobody starts again but `orch attach`, which the watcher is told."""
    run = launch(measure__epochs="12")
    vms = {vm["vm"]: vm["pid"] for vm in run.host()["vms"]}
    (controller,) = run.pids("ray::ControllerActor")
    os.kill(controller, signal.SIGKILL)
    wait_for("the next controller", lambda: run.pids("ray::ControllerActor") not in ([], [controller]), 60)
    run.wait_for_epoch(run.epoch() + 2)
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
    _check_nothing_lost_or_doubled(run, vms)


def _check_nothing_lost_or_doubled(run: Running, vms: dict[str, int]) -> None:
    assert {vm["vm"]: vm["pid"] for vm in run.host()["vms"]} == vms
    with RunStore.open_reader(run.folder / "run.db") as store:
        assert store.meta("status") == "done"
        assert {row.vm for row in store.records("vms")} == set(vms) - {"monitor"}
        epochs = [(row.vm, row.epoch) for row in store.records("epochs")]
        last = store.meta("epochs") + store.meta("warmup_epochs")
    assert sorted(epochs) == [
        (vm, epoch) for vm in sorted(set(vms) - {"monitor"}) for epoch in range(1, last + 1)
    ]


def test_killed_switch_ends_the_run_cleanly(launch: Callable[..., Running]):
    run = launch()
    os.kill(run.host()["switch_pid"], signal.SIGKILL)
    code, _ = run.finish(60)
    assert code == 1
    said = run.stderr.read_text()
    assert "switch" in said
    assert "Traceback" not in said
    assert orch("down", run.run_id).returncode == 0


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
