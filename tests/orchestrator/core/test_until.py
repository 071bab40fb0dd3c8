"""Goals that end a run before its planned epochs, and the epoch after which all peers can end together."""

from dataclasses import replace
from decimal import Decimal

import pytest

from metrics.records import EventRecord
from orchestrator.core.events import StopWanted
from orchestrator.core.journal import created, replay, story
from orchestrator.core.until import Goals, Trained, last_epoch, reached
from tests.orchestrator.core.test_machine import spec
from tests.orchestrator.core_driver import Driver

AT = Trained(
    now_s=160.0, epoch=9, ended_s=158.0, epoch_s=30.0, samples=9e3, trained_s=300.0, spent_usd=Decimal("1.5"),
    evaluated=(2.0, 1.4, 1.6),
)  # fmt: skip


@pytest.mark.parametrize(
    ("goals", "found"),
    [
        (Goals(), None),
        (Goals(samples=9000), "samples"),
        (Goals(samples=9001), None),
        (Goals(time_s=300.0), "time_s"),
        (Goals(time_s=300.1), None),
        (Goals(usd=Decimal("1.5")), "usd"),
        (Goals(usd=Decimal("1.51")), None),
        (Goals(metric="loss", at_most=1.4), "metric"),
        (Goals(metric="loss", at_most=1.39), None),
        (Goals(metric="accuracy", at_least=2.0), "metric"),
        (Goals(metric="accuracy", at_least=2.1), None),
        (Goals(samples=1, time_s=1.0, usd=Decimal(1), metric="loss", at_most=3.0), "metric"),
        (Goals(samples=10**9, time_s=1.0), "time_s"),
    ],
)
def test_the_goal_that_is_reached(goals, found):
    assert reached(goals, AT) == found


def test_unknown_dollars_and_figures_that_are_not_numbers_reach_nothing():
    assert reached(Goals(usd=Decimal("0.01")), replace(AT, spent_usd=None)) is None
    nan = replace(AT, evaluated=(float("nan"),))
    assert reached(Goals(metric="loss", at_most=9.0), nan) is None
    assert reached(Goals(metric="loss", at_least=0.0), nan) is None
    assert reached(Goals(metric="loss", at_most=9.0), replace(AT, evaluated=())) is None


@pytest.mark.parametrize(
    ("epoch_s", "ended_s", "last"),
    [
        (30.0, 158.0, 10),  # the epoch in progress goes on for 28 s
        (30.0, 135.0, 11),  # it ends in 5 s, before all peers have the orders
        (3.0, 158.0, 13),
        (3.0, 170.0, 13),  # the peers' clocks are ahead
        (600.0, 10.0, 10),
        (None, 158.0, 11),
        (0.0, 158.0, 11),
    ],
)
def test_the_last_epoch_ends_after_all_peers_have_the_orders(epoch_s, ended_s, last):
    at = replace(AT, epoch_s=epoch_s, ended_s=ended_s)
    assert last_epoch(at, order_s=10.0) == last
    assert last_epoch(at, 11, order_s=10.0) == min(last, 11)


def goal_spec():
    return replace(spec(), until=Goals(samples=9000, usd=Decimal("2.50"), metric="loss", at_most=1.0))


def test_a_goal_orders_the_last_epoch_once_and_the_run_ends_as_usual():
    run = Driver(goal_spec()).train()
    run.feed(replace(AT, samples=8999.0))
    assert run.state.last_epoch is None
    run.feed(AT)
    assert (run.state.last_epoch, run.state.ended_by, run.state.stop_status) == (10, "samples", "")
    row = run.facts[-1]
    assert (row.kind, row.cause) == (
        "run",
        "the goal samples is reached (train.until): epoch 10 is the last one",
    )
    run.feed(replace(AT, epoch=10, evaluated=(0.5,)))
    assert (run.state.last_epoch, run.state.ended_by) == (10, "samples")
    for vm in ("r-a-0", "r-b-0"):
        run.sees(vm, phase="done")
    assert run.state.finishing_s is not None
    run.tick(60.0)
    assert run.state.stop_status == "done"


@pytest.mark.parametrize(
    ("epochs", "last", "told"),
    [
        (12, 12, ", but too late for an earlier end: epoch 12 is the last one, as planned (measure)"),
        (200, 141, ": epoch 141 is the last one"),
    ],
)
def test_a_goal_that_is_reached_too_late_for_short_epochs_does_not_end_the_run(epochs, last, told):
    run = Driver(replace(spec(), until=Goals(samples=9000), epochs=epochs)).train()
    run.feed(replace(AT, epoch_s=1 / 6))
    assert run.state.last_epoch == last
    assert run.facts[-1].cause == f"the goal samples is reached (train.until){told}"


def test_without_goals_or_after_a_stop_nothing_is_ordered():
    run = Driver(spec()).train()
    run.feed(AT)
    assert run.state.last_epoch is None
    run = Driver(goal_spec()).train()
    run.feed(StopWanted(run.now_s, "stopped", "by the user"))
    run.feed(AT)
    assert run.state.last_epoch is None


def test_the_journal_restores_goals_and_the_ordered_epoch():
    run = Driver(goal_spec()).train()
    run.feed(AT)
    rows = [
        EventRecord(
            n, 100.0, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json
        )
        for n, f in enumerate([created(goal_spec()), *run.facts])
    ]
    again = replay(rows)
    assert again.spec.until == goal_spec().until
    assert (again.last_epoch, again.ended_by) == (10, "samples")
    assert any("epoch 10 is the last one" in line for line in story(rows))
