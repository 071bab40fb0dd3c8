"""A clock that is set while a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloud.clock import run_clock, steady_clock


def test_a_clock_set_back_or_forward_changes_nothing():
    wall, ticks = [1000.0], [5.0]
    now_s = steady_clock(lambda: wall[0], lambda: ticks[0])
    seen = [now_s()]
    for set_to, passed in ((1001.0, 1.0), (-3600.0, 1.0), (1e9, 1.0)):
        wall[0], ticks[0] = set_to, ticks[0] + passed
        seen.append(now_s())
    assert seen == [1000.0, 1001.0, 1002.0, 1003.0]


def test_clock_continues_after_last_record_after_restart():
    now_s = steady_clock(lambda: 900.0, lambda: 5.0, not_before_s=1000.0)
    assert now_s() == 1000.0


def test_default_clock_is_the_machines_time_and_advances():
    import time

    now_s = steady_clock()
    first = now_s()
    assert abs(first - time.time()) < 5
    assert now_s() >= first


class Machine:
    """A machine whose clock is set at will, and that starts again at will."""

    def __init__(self) -> None:
        self.wall_s, self.ticks, self.boot = 1_000_000.0, 5.0, "first"

    def passes(self, seconds: float) -> None:
        self.wall_s, self.ticks = self.wall_s + seconds, self.ticks + seconds

    def process(self, folder: Path, **more: Any) -> Callable[[], float]:
        return run_clock(
            folder, wall_s=lambda: self.wall_s, ticks_s=lambda: self.ticks, boot=lambda: self.boot, **more
        )


@pytest.mark.parametrize("set_by_s", [-3600.0, -1800.0, -31.0, 31.0, 700.0, 3600.0])
def test_processes_of_a_run_share_a_clock_despite_clock_changes(tmp_path, set_by_s):
    machine = Machine()
    controller = machine.process(tmp_path)
    machine.passes(100.0)
    machine.wall_s += set_by_s
    assert controller() == 1_000_100.0
    machine.passes(20.0)  # the controller is killed meanwhile
    restarted, provider = machine.process(tmp_path, not_before_s=1_000_100.0), machine.process(tmp_path)
    reader = machine.process(tmp_path, begin=False)
    assert restarted() == provider() == reader() == 1_000_120.0


def test_clock_continues_after_last_record_after_reboot(tmp_path):
    machine = Machine()
    machine.process(tmp_path)
    machine.wall_s, machine.ticks, machine.boot = 990_000.0, 1.0, "second"
    restarted = machine.process(tmp_path, not_before_s=1_000_100.0)
    machine.passes(1.0)
    assert restarted() == machine.process(tmp_path)() == 1_000_101.0


def test_reading_starts_no_clock_and_damaged_clock_files_are_tolerated(tmp_path):
    machine = Machine()
    assert machine.process(tmp_path, begin=False)() == 1_000_000.0
    assert list(tmp_path.iterdir()) == []
    assert machine.process(tmp_path / "gone")() == 1_000_000.0
    (tmp_path / "clock-first.json").write_text("{")
    clock = machine.process(tmp_path)
    machine.wall_s -= 3600.0
    machine.ticks += 1.0
    assert clock() == 1_000_001.0
