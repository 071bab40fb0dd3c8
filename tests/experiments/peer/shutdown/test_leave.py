"""The last steps of a peer, in an orderly shutdown and run by the watchdog."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from experiments.peer.processes import run_within
from experiments.peer.shutdown.leave import LeaveSequence
from experiments.peer.status import Status


def test_the_watchdog_repeats_all_steps_and_removes_the_folder(tmp_path: Path) -> None:
    calls: list[str] = []
    status, temporary = Status(tmp_path / "status.json"), tmp_path / "t"
    temporary.mkdir()
    leave = LeaveSequence(status, lambda: calls.append("egress"), temporary)
    leave.add(lambda: calls.append("progress"), lambda: calls.append("records"))
    leave.add(lambda: calls.append("announcement"))
    leave.tell_swarm()
    assert calls == ["progress", "records", "announcement"]
    assert (status.phase, temporary.exists()) == ("starting", True)
    leave.cut_short()
    assert calls[3:] == ["progress", "records", "announcement", "egress"]
    assert (status.phase, temporary.exists()) == ("leaving", False)


def test_before_the_peer_is_known_to_the_swarm_only_egress_is_written(tmp_path: Path) -> None:
    calls: list[str] = []
    LeaveSequence(Status(tmp_path / "s"), lambda: calls.append("egress"), tmp_path / "t").cut_short()
    assert calls == ["egress"]


def test_hanging_or_failing_shutdown_does_not_block() -> None:
    release = threading.Event()
    began = time.monotonic()
    run_within(0.1, lambda: release.wait(30.0) and None)
    assert time.monotonic() - began < 5.0
    release.set()

    def fail() -> None:
        raise ValueError("no")

    run_within(1.0, fail)
