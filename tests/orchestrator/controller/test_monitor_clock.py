"""Last-seen times follow the controller's clock, whatever happens to the time of day."""

from __future__ import annotations

import json

import pytest

from metrics.store.database import RunStore
from orchestrator.controller.monitor_log import MonitorTail
from orchestrator.core.observations import Swarm, silent
from orchestrator.core.state import Place, RunSpec, RunState, Slot, SlotSpec, SlotState

PLACE = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, None, "unknown")
SPEC = RunSpec("r", (SlotSpec("a", (PLACE,)), SlotSpec("b", (PLACE,))), silent_deadline_s=120.0)


@pytest.fixture
def tail(tmp_path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        yield MonitorTail(store, tmp_path / "monitor.jsonl")


def say(tail: MonitorTail, at_s: float, *alive: str) -> None:
    with tail._path.open("a") as file:
        file.write(json.dumps({"kind": "swarm", "at_s": at_s, "alive": alive}) + "\n")


@pytest.mark.parametrize("set_by_s", [0.0, -3600.0, -20.0, 3600.0])
def test_silence_is_found_although_the_clock_is_set(tail, set_by_s):
    slots = tuple(Slot(n, SlotState.TRAINING, vm=f"r-{n}-0", since_s=1000.0) for n in "ab")
    state = RunState(SPEC, slots)
    found_s = None
    for now_s in range(1000, 1400):
        wall_s = now_s + (set_by_s if now_s >= 1100 else 0.0)
        say(tail, wall_s - 0.5, "r-a-0", *(["r-b-0"] if now_s < 1150 else []))
        tail.read(float(now_s))
        lost = silent(state, Swarm(tail.swarm_at_s, tail.last_seen_s, tail.swarm_since_s), now_s)
        assert [e.vm for e in lost] in ([], ["r-b-0"])
        found_s = found_s or (now_s if lost else None)
    assert found_s == pytest.approx(1150 + 120, abs=2)


def test_older_lines_do_not_count_as_recent_observations(tail):
    say(tail, 500.0, "r-a-0")
    tail.read(1000.0)
    assert (tail.swarm_at_s, tail.last_seen_s) == (500.0, {"r-a-0": 500.0})
    tail.read(1001.0)
    assert tail.swarm_at_s == 500.0  # nobody looks any more
    say(tail, 501.0, "r-a-0")
    tail.read(1002.0)
    assert tail.last_seen_s == {"r-a-0": 1002.0}


def test_unreadable_lines_do_not_set_the_clock(tail):
    tail.read(999.0)  # no file yet: whatever comes is new
    with tail._path.open("a") as file:
        file.write('not json\n{"kind": "swarm"}\n[]\n{"kind": "rejected", "reason": "x", "count": 1}\n')
    tail.read(1000.0)
    assert tail.swarm_at_s == 0.0
    say(tail, 77.0, "r-a-0")
    tail.read(1001.0)
    assert tail.swarm_at_s == 1001.0
