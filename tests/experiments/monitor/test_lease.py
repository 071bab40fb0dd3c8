"""The monitor has a lease too: without new orders of the controller it ends itself, some time after the peers."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cloud.provider import Observed
from cloud.vm_report import read_status
from experiments.monitor import main as program
from experiments.monitor.main import AbandonedError, MonitorConfig, _Monitor, main
from experiments.wire.orders import Orders, generate_run_key, sign
from orchestrator.controller.tick import _observed


class NoSwarm:
    """A DHT without nodes."""

    nodes = 0
    peer_id = ""

    def connect(self, *_: Any) -> None:
        pass

    def query(self, *_: Any) -> list[Any]:
        return []

    def publish(self, *_: Any) -> None:
        pass

    async def start(self, *_: Any) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture
def monitor(tmp_path: Path) -> Any:
    """A monitor that reads ten times a second, and how orders are given to it."""
    private, public = generate_run_key()
    folder = tmp_path / "monitor"
    folder.mkdir()
    made: Any = _Monitor(MonitorConfig("r", "", 64, 0.1, 1.0, public), folder)
    made._reader = NoSwarm()

    def give(version: int, lease_s: float) -> None:
        now_s = time.time()
        (folder / "orders.new").write_bytes(
            sign(Orders("r", version, now_s, now_s + lease_s, False, ()), private)
        )
        (folder / "orders.new").replace(folder / "orders.bin")

    yield made, give
    made._sink.close()


def test_monitor_exits_without_new_orders_for_a_lease_and_a_margin(
    monitor: Any, monkeypatch: pytest.MonkeyPatch
):
    watched, give = monitor
    monkeypatch.setattr(program, "_GRACE_S", 0.5)
    give(1, 1.0)
    began = time.monotonic()
    with pytest.raises(AbandonedError, match="no new orders from the controller"):
        asyncio.run(asyncio.wait_for(watched._watch(asyncio.Event()), 60))
    assert time.monotonic() - began >= 1.5


def test_monitor_outlives_the_leases_of_its_peers(monitor: Any):
    watched, give = monitor
    give(1, 20.0)
    now = time.monotonic()
    assert not watched._why_abandoned(now)
    assert not watched._why_abandoned(now + 20.0 + 29.0)
    assert watched._why_abandoned(now + 20.0 + 31.0)


def test_suspended_monitor_reads_the_orders_before_it_decides(monitor: Any):
    watched, give = monitor
    give(1, 20.0)
    now = time.monotonic()
    assert not watched._why_abandoned(now)
    give(2, 20.0)
    assert not watched._why_abandoned(now + 1000.0), "newer orders lie there"
    assert not watched._why_abandoned(now + 1020.0), "and their lease runs from when they were read"


def test_the_reason_is_in_its_status_and_the_controllers_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("experiments.monitor.swarm.SwarmReader", lambda _: NoSwarm())
    monkeypatch.setattr(program, "_FIRST_ORDERS_S", 0.1)
    monkeypatch.setattr(program, "_GRACE_S", 0.1)
    config = {
        "run_key": "r", "target_batch_size": 64, "period_s": 0.1, "orders_public_key": generate_run_key()[1],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(str(tmp_path / "config.json")) == 1
    said = read_status(tmp_path / "status.json")
    assert said["error"].startswith("no new orders from the controller for")
    ended = Observed(
        "monitor", "failed", "", None, 0.0, 0.0, 1.0, "its program ended with exit code 1", None, said, None
    )
    assert _observed(ended, 2.0).cause == said["error"], "the controller's own cause"


def test_monitor_runs_while_orders_are_renewed(monitor: Any):
    watched, give = monitor

    async def renew() -> bool:
        task = asyncio.create_task(watched._watch(asyncio.Event()))
        for version in range(1, 9):
            give(version, 20.0)
            await asyncio.sleep(0.1)
        watched._orders_read_at -= 49.0
        give(9, 20.0)
        await asyncio.sleep(0.5)
        watched._orders_read_at -= 2.0  # 51 s after the eighth, 2 s after the ninth
        await asyncio.sleep(0.5)
        lives = not task.done()
        task.cancel()
        return lives

    assert asyncio.run(renew())


def test_monitor_without_any_orders_exits_after_a_default_lease(monitor: Any):
    watched, _ = monitor
    now = time.monotonic()
    assert not watched._why_abandoned(now + 610.0)
    assert watched._why_abandoned(now + 632.0)
