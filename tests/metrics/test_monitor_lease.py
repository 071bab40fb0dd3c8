"""The monitor has a lease too: without new orders of the controller it ends itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from metrics.monitor.main import MonitorConfig, _Monitor
from metrics.orders import Orders, generate_run_key, sign


class NoSwarm:
    """A DHT without nodes."""

    nodes = 0
    peer_id = ""

    def connect(self, *_: Any) -> None:
        pass

    def ask(self, *_: Any) -> list[Any]:
        return []

    def bring(self, *_: Any) -> None:
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


def test_it_ends_when_no_new_orders_came_for_a_lease(monitor: Any):
    watched, give = monitor
    give(1, 1.0)
    began = time.monotonic()
    asyncio.run(asyncio.wait_for(watched._watch(asyncio.Event()), 60))
    assert time.monotonic() - began >= 1.0


def test_it_goes_on_while_orders_are_renewed(monitor: Any):
    watched, give = monitor

    async def renew() -> bool:
        task = asyncio.create_task(watched._watch(asyncio.Event()))
        for version in range(1, 9):
            give(version, 20.0)
            await asyncio.sleep(0.1)
        watched._orders_read_at -= 19.0
        give(9, 20.0)
        await asyncio.sleep(0.5)
        watched._orders_read_at -= 2.0  # 21 s after the eighth, 2 s after the ninth
        await asyncio.sleep(0.5)
        lives = not task.done()
        task.cancel()
        return lives

    assert asyncio.run(renew())


def test_without_any_orders_it_ends_after_a_usual_lease(monitor: Any):
    watched, _ = monitor
    now = time.monotonic()
    assert not watched._is_abandoned(now + 500.0)
    assert watched._is_abandoned(now + 601.0)
