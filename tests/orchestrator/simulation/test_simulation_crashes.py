"""A scripted run whose controller is killed at every journal write: before it, after it, before the reply."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import get_args

import pytest

from cloud.sim import TraceEvent
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
