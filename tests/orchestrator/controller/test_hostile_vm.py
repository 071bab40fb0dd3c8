"""A broken or hostile VM neither ends the run nor affects other VMs; a failed tick is repeated."""

from dataclasses import replace

import pytest
from shell_world import shell

from benchmarks.hostile_vm import run_many
from cloud.provider import Observed, TransientError
from metrics.store.database import FencedError, RunStore
from orchestrator.controller import actor
from orchestrator.controller import tick as shell_module
from orchestrator.core import events as ev
from orchestrator.core.journal import begin
from orchestrator.core.observations import corroborated
from tests.orchestrator.shell_world import RUN, World


def test_drawn_corruptions_end_no_run_and_touch_no_other_vm():
    tally = run_many(lambda so_far: so_far.corruptions >= 500)
    assert tally.corruptions >= 500
    assert tally.in_dht > 100
    assert tally.runs > 1
    assert tally.wrong == {}


def test_unrecoverable_counts_when_two_vms_report_it():
    said = [ev.Observed(1.0, "r-a-0", "running", "failed", unrecoverable=True)]
    assert [e.unrecoverable for e in corroborated(begin(RUN), said, {"r-a-0"})] == [False]
    assert [e.unrecoverable for e in corroborated(begin(RUN), said, {"r-a-0", "r-b-0"})] == [True]
    one = replace(RUN, slots=RUN.slots[:1])
    assert [e.unrecoverable for e in corroborated(begin(one), said, {"r-a-0"})] == [True]


def test_an_event_that_the_core_cannot_process_is_skipped(tmp_path, monkeypatch):
    world = World(tmp_path)
    real = shell_module.advance

    def advance(state, events, now_s, jitter):
        if any(isinstance(e, ev.Observed) and e.vm == "r-a-0" and e.phase == "training" for e in events):
            raise OverflowError("no such year")
        return real(state, events, now_s, jitter)

    monkeypatch.setattr(shell_module, "advance", advance)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        from metrics.records import EventRecord
        from orchestrator.core.journal import created

        fact = created(RUN)
        store.append(
            "events", [EventRecord(0, 1000.0, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
        )
        controller = shell(world, store)
        for _ in range(15):
            controller.tick()
            world.now_s += 1.0
        assert [s.state.name for s in controller.state.slots] == ["JOINING", "TRAINING"]


class Ticks:
    """A shell whose ticks raise what they are told, then end the run."""

    def __init__(self, *raised: Exception) -> None:
        self.raised, self.made, self.slept_s = list(raised), 0, 0.0

    def __call__(self, broken: Exception | None) -> "Ticks":
        self.made += broken is not None
        return self

    def tick(self) -> bool:
        if self.raised:
            raise self.raised.pop(0)
        return True

    def run(self) -> None:
        def sleep(for_s: float) -> None:
            self.slept_s += for_s

        actor.run_to_the_end(self, lambda _: None, lambda: self.slept_s, sleep)  # type: ignore[arg-type]


def test_a_tick_that_raises_is_repeated_from_the_journal():
    ticks = Ticks(OSError("database is locked"), ValueError("x"), OSError("again"), ValueError("y"))
    ticks.run()
    assert ticks.made == 4
    assert ticks.slept_s == 1.0 + 2.0 + 4.0 + 8.0


def test_five_consecutive_failed_ticks_end_the_run():
    with pytest.raises(ValueError, match="the fifth"):
        Ticks(*[ValueError("x")] * 4, ValueError("the fifth")).run()


def test_a_fenced_controller_stops_at_once():
    ticks = Ticks(FencedError("another one"))
    with pytest.raises(FencedError):
        ticks.run()
    assert ticks.made == 0


def test_a_failed_close_is_retried_by_the_same_shell():
    ticks = Ticks(TransientError("x"), TransientError("x"))
    ticks.run()
    assert ticks.made == 0


def test_an_unchecked_status_ends_nothing():
    """A provider of somebody's own: what `_observed` makes of its status can be journalled."""
    for value in (float("inf"), 1e18, "x", [], True, 10**30):
        seen = Observed(
            "r-a-0", "running", "gcp/us-central1", None, 1.0, 2.0, None, "\x1b[2J\ud800", None,
            {"phase": "failed", "notice_at_s": value, "hopeless": "no", "error": "\ud800"},
        )  # fmt: skip
        event = shell_module._observed(seen, 1000.0)
        assert (event.notice_at_s, event.unrecoverable) == (None, False)
        event.cause.encode()
