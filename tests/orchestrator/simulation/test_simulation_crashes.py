"""A scripted run whose controller is killed at every journal write: before it, after it, before the reply."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import get_args

import pytest

from cloud.sim import TraceEvent
from metrics.records import CHECKPOINT_RESTORED, CHECKPOINT_STORED, CHECKPOINTS, SWARM_LOST
from orchestrator.simulation.controller import CrashPoint
from orchestrator.simulation.driver import Outcome, simulate
from orchestrator.simulation.scenario import Crash, Scenario, scenario

_EPOCHS = 40


@cache
def scripted() -> Scenario:
    """Three VMs requested at once, three preemptions (one with notice), a zone without capacity, done after 40 epochs."""
    made = scenario(1, days=1.0, peers=3, faults=())
    first, second, third = (s.places[0].location for s in made.spec.slots)
    trace = (
        TraceEvent(900.0, first, "preempt", Decimal(1)),
        TraceEvent(1800.0, second, "refuse", Decimal(1)),
        TraceEvent(1810.0, second, "preempt", Decimal(1)),
        TraceEvent(2700.0, second, "refuse", Decimal(0)),
        TraceEvent(3600.0, third, "preempt", Decimal(1)),
    )
    spec = replace(made.spec, budget_usd=Decimal(50), max_usd_per_h=None, min_peers=2, first_alone=False)
    return replace(made, spec=spec, trace=trace, peers=replace(made.peers, max_epochs=_EPOCHS, waits=True))


@cache
def undisturbed() -> Outcome:
    return simulate(scripted())


def test_scripted_run_has_preemptions_and_replacements():
    outcome = undisturbed()
    assert (outcome.status, outcome.restarts) == ("done", 0)
    assert outcome.preemptions >= 3
    assert outcome.replacements >= 3
    assert outcome.writes > 30
    assert any(e.cause.endswith(" begins the swarm") for e in outcome.journal)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_run_killed_at_any_write_ends_the_same(point: CrashPoint):
    """No VM is lost or duplicated (checked by the simulation), no epoch is lost, and only the delay costs money."""
    whole = undisturbed()
    crashed = 0
    for write in range(whole.writes):
        made = replace(scripted(), crashes=(Crash(0.0, point, 30.0, writes=write),))
        outcome = simulate(made)
        crashed += outcome.restarts
        assert (outcome.status, outcome.epochs) == (whole.status, whole.epochs), f"{point} at write {write}"
        assert outcome.journal[-1].kind == "run_ended"
        late_usd = Decimal("0.15")  # of VMs that waited for their controller
        assert abs(outcome.spent_usd - whole.spent_usd) < late_usd, f"{point} at write {write}"
    assert crashed >= whole.writes - (1 if point == "before_reply" else 0) * whole.writes // 2


@cache
def total_loss() -> Scenario:
    """The scripted run with a checkpoint every 5 epochs; all three VMs are preempted at once in the middle of an interval."""
    made = scripted()
    trace = tuple(
        TraceEvent(2000.0, slot.places[0].location, "preempt", Decimal(1)) for slot in made.spec.slots
    )
    return replace(made, trace=trace, peers=replace(made.peers, checkpoint_every=5))


@cache
def resumed() -> Outcome:
    return simulate(total_loss())


def rows(outcome: Outcome) -> Counter[tuple[str, str, str]]:
    """(kind, VM, key) of each note on a checkpoint in the journal."""
    notes = [e for e in outcome.journal if e.kind in CHECKPOINTS]
    return Counter((e.kind, e.vm, json.loads(e.data_json)["key"]) for e in notes)


def test_the_run_with_checkpoints_stores_loses_all_peers_and_restores():
    outcome = resumed()
    kinds = Counter(kind for kind, _, _ in rows(outcome).elements())
    assert (outcome.status, outcome.restarts, outcome.epochs) == ("done", 0, _EPOCHS)
    assert kinds[CHECKPOINT_STORED] >= 3
    assert kinds[CHECKPOINT_RESTORED] >= 1
    assert [e.kind for e in outcome.journal].count(SWARM_LOST) == 1
    assert outcome.lost_epochs > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_run_with_checkpoints_killed_at_any_write_counts_no_epoch_twice(point: CrashPoint):
    """Killed around each write, those of checkpoints, of the loss and of the restore among them.

    That lost epochs are told apart from those that count, and that no more than an interval is lost, is checked by the
    simulation at the end of each run (`checks.lost_work`).
    """
    whole = resumed()
    crashed = 0
    for write in range(whole.writes):
        outcome = simulate(replace(total_loss(), crashes=(Crash(0.0, point, 30.0, writes=write),)))
        crashed += outcome.restarts
        at = f"{point} at write {write}"
        assert (outcome.status, outcome.epochs) == ("done", _EPOCHS), at
        assert set(rows(outcome).values()) == {1}, f"a checkpoint was noted twice: {at}"
        assert [e.kind for e in outcome.journal].count(SWARM_LOST) == 1, at
        assert any(kind == CHECKPOINT_RESTORED for kind, _, _ in rows(outcome)), at
    assert crashed >= whole.writes // 2
