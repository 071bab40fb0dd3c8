"""A scripted run with preemptions, killed at every store write and between every call and its reply, reaches the same end."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from random import Random

import pytest
from crash_rig import EPOCHS, ScriptedRun, use_quick_keys

from metrics.store.database import RunStore
from orchestrator.controller.records import Rows
from orchestrator.controller.tick import Shell
from orchestrator.core.events import Fact
from orchestrator.core.journal import replay

pytestmark = pytest.mark.slow

_HOUR = Decimal(3600)


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch):
    """RSA keys take a second each: one run's key for all, and none for the VMs, which are simulated."""
    use_quick_keys(monkeypatch.setattr)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: hundreds of runs, each with a hundred fsyncs."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="crash-", dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


@dataclass(frozen=True)
class End:
    """What must not depend on where a controller was stopped."""

    status: str
    slots: tuple[tuple[str, str, int], ...]  # name, state, generation
    vms: tuple[tuple[str, str], ...]  # name, why it ended
    wished: frozenset[str]


def end_of(run: ScriptedRun) -> End:
    """Checks what must hold at the end of every run, and says how this one ended."""
    with RunStore.open_reader(run.path) as store:
        events = store.records("events")
        rows = store.records("vms")
        epochs = [(e.vm, e.epoch) for e in store.records("epochs")]
        sent = sum(e.bytes for e in store.records("egress"))
        status = store.meta("status")
    state = replay(events)
    truth = {vm.vm: vm for vm in run.world.vms.values() if vm.billed}
    now_s = run.clock.now_s
    assert run.wrong == []
    assert state.ended
    assert [e.seq for e in events] == list(range(len(events)))
    # no VM lost or doubled
    assert run.world.alive("r") == []
    assert {r.vm for r in rows} == set(truth) <= state.intents
    # no dollar lost: each VM is billed for just the time it was there
    assert {r.vm: (r.requested_s, r.ended_s) for r in rows} == {
        vm: (v.created_s, v.ended_s) for vm, v in truth.items()
    }
    billed = sum(
        ((r.usd_per_h or 0) * Decimal(repr(r.ended_s - r.requested_s)) / _HOUR for r in rows), Decimal(0)
    )
    assert abs(billed - run.world.meter.spent("r", now_s)[0]) < Decimal("1e-9")
    assert sent == sum(1000 + epoch for _, epoch in run.swarm.told)
    # no epoch lost or doubled
    assert sorted(epochs) == sorted(run.swarm.told)
    assert {epoch for _, epoch in epochs} == set(range(1, EPOCHS + 1))
    return End(
        status=status,
        slots=tuple((s.name, str(s.state), s.generation) for s in state.slots),
        vms=tuple(sorted((r.vm, r.end_cause) for r in rows)),
        wished=state.intents,
    )


def test_the_script_covers_the_listed_situations(folder):
    run = ScriptedRun(folder)
    points = run.run()
    end = end_of(run)
    assert end.status == "done"
    assert dict(end.vms) == {
        "r-asia-0-0": "terminated", "r-eu-0-0": "preempted", "r-eu-0-1": "terminated",
        "r-us-0-1": "preempted", "r-us-0-3": "terminated",
    }  # fmt: skip
    assert end.wished - {vm for vm, _ in end.vms} == {"r-us-0-0", "r-us-0-2"}  # refused: nothing was rented
    assert run.cloud.faults.counts["lost_reply"] == 1
    with RunStore.open_reader(run.path) as store:
        pauses = [paused for paused, _ in groupby(_paused(store.records("events")))]
    assert pauses == [False, True, False, True, False]
    assert {vm.vm for vm in run.world.vms.values() if not vm.billed} == {"monitor", "monitor-1"}
    assert len(points.passed) > 150


def _paused(events) -> list[bool]:
    """Whether the run was paused, row by row of the journal."""
    return [replay(events[: n + 1]).paused for n in range(len(events))]


def test_killed_at_any_point_it_reaches_the_same_end(folder, capsys):
    whole = ScriptedRun(folder / "whole")
    points = whole.run().passed
    expected = end_of(whole)
    for number, what in enumerate(points, 1):
        run = ScriptedRun(folder / "run")
        run.run(number)
        assert run.controllers == 2, what
        try:
            assert end_of(run) == expected
        except AssertionError as error:
            raise AssertionError(f"stopped at point {number}, {what}: {error}") from error
        shutil.rmtree(folder / "run")
    with capsys.disabled():
        kinds = ", ".join(f"{n} {what}" for what, n in sorted(Counter(points).items()))
        print(f"\n{len(points)} crash points, all come to the same end: {kinds}")


def test_repeated_kills_reach_the_same_end(folder):
    """Three controllers die, each at a point drawn from a seed; the fourth comes to the same end."""
    whole = ScriptedRun(folder / "whole")
    points = whole.run().passed
    expected = end_of(whole)
    random = Random(7)
    for _ in range(40):
        stops = [random.randint(1, len(points) // 3) for _ in range(3)]
        run = ScriptedRun(folder / "run")
        run.run(*stops)
        assert run.controllers == 4, stops
        assert end_of(run) == expected, stops
        shutil.rmtree(folder / "run")


def test_detects_a_journal_written_after_the_request(folder, monkeypatch):
    """The suite can fail: with the one write moved behind what it announces, most points show it."""
    write_late(monkeypatch)
    whole = ScriptedRun(folder / "whole")
    points = whole.run().passed
    assert any("the journal does not know it" in wrong for wrong in whole.wrong)
    found = 0
    requests = [n for n, what in enumerate(points, 1) if what == "request: before its reply"]
    for number in requests:
        run = ScriptedRun(folder / f"{number}")
        run.run(number)
        with pytest.raises(AssertionError):
            end_of(run)
        found += 1
    assert found == len(requests) >= 8


def write_late(monkeypatch) -> None:
    """Patch the shell: a tick's journal rows go to the disk when all else of the tick is done."""
    journal, tick = Rows.journal, Shell.tick
    waiting: list[tuple[Rows, list[Fact], float]] = []

    def later(self: Rows, facts, now_s: float) -> None:
        waiting.append((self, list(facts), now_s))

    def late(self: Shell) -> bool:
        waiting.clear()
        ended = tick(self)
        for rows, facts, now_s in waiting:
            journal(rows, facts, now_s)
        return ended

    monkeypatch.setattr(Rows, "journal", later)
    monkeypatch.setattr(Shell, "tick", late)
