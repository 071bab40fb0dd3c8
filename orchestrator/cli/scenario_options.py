"""Options of `orch simulate` that change or check a scenario."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cloud.places import nearest
from cloud.sim.traces import TraceError, load_trace
from orchestrator.errors import UsageError
from orchestrator.simulation.scenario import Scenario


def check_slot(slot: str, made: Scenario) -> None:
    """Raises UsageError if the run has no such slot."""
    names = [each.name for each in made.spec.slots]
    if slot not in names:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"--slot: '{slot[:80]}' is not a slot of this run (slots: {some}){nearest(slot[:80], names)}"
        )


def with_trace(made: Scenario, trace: Path, instance: str) -> Scenario:
    """The scenario with the events of a trace as well. Raises UsageError."""
    try:
        events = load_trace(trace, instance=instance)
    except TraceError as error:
        raise UsageError(str(error)) from error
    known = {place.location for place in made.places}
    if not any(event.location in known or event.location == "*" for event in events):
        raise UsageError(
            f"{trace}: covers {events[0].location if events else 'no location'}, but the run is in {', '.join(sorted(known))}"
        )
    more = f" --trace {trace}" + (f" --instance {instance}" if instance else "")
    return replace(made, trace=(*made.trace, *events), command=made.command + more)
