"""`orch simulate`: the controller's own core on a virtual clock, against a simulated cloud and a history of faults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.choosing import MatrixOption
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from orchestrator.simulation.driver import Outcome
    from orchestrator.simulation.scenario import FaultClass, Scenario

_TABLE = (
    "seed", "status", "hours", "vms", "preemptions", "replacements", "refusals", "vm_hours", "spent_usd",
    "budget_usd", "epochs", "training_share", "restarts",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("simulate")(_simulate)


def _simulate(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]", help="An experiment; without one, made-up slots in five zones."
        ),
    ] = None,
    matrix: MatrixOption = None,
    seed: Annotated[int, typer.Option(help="Of the history; the same seed gives the same run.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds, from --seed on.")] = 1,
    days: Annotated[float, typer.Option(min=0.01, max=366, help="How long the run lasts at most.")] = 1.0,
    peers: Annotated[int, typer.Option(min=1, max=100_000, help="Slots, without an experiment.")] = 8,
    epochs: Annotated[
        int, typer.Option(min=0, help="Of an experiment: its peers are done after so many; 0: never.")
    ] = 0,
    faults: Annotated[
        str, typer.Option(help="all, none, or classes separated by commas; `--faults list` names them.")
    ] = "all",
    trace: Annotated[
        Path | None,
        typer.Option(help="A spot market's history: our CSV, or AWS's spot price history as JSON."),
    ] = None,
    instance: Annotated[str, typer.Option(help="The instance type to take from AWS's history.")] = "",
    slot: Annotated[str, typer.Option(help="Print this slot's story, too (on stderr).")] = "",
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Simulate a run: days in a second, with preemptions, full zones, failing calls and a controller that is killed.

    The decisions are the real controller's; the cloud, the peers and the clock are made up. After every event the
    controller's promises are checked: every VM is in the journal, nothing is spent above the budget, one VM a slot
    and generation, progress where there is capacity, everything dead in time. A broken promise ends the command
    with 1, and says how to see it again. An experiment has the places and prices of `orch plan --on sky`; traffic is
    neither billed nor kept back for.

    \b
    JSON: {"schema_version", "runs": [{"seed", "status" (done, stopped: the time was over, budget, failed,
      no_capacity, lost: the controller never came back), "cause", "hours", "vms", "preemptions",
      "replacements", "refusals", "vm_hours", "spent_usd", "budget_usd", "epochs", "samples",
      "training_share" (of the VM hours), "median_joining_s" (request to training), "restarts"
      (of the controller), "writes" (of the journal), "dead_after_s" (stop to the last VM's end),
      "fired" {class of faults: how often}}]}
    Exit codes: 0 all promises were kept, 1 one was broken, 2 wrong command, experiment or trace, 3 the
    experiment's budget or limits are refused.
    """
    from orchestrator.core.journal import story
    from orchestrator.errors import RunFailedError
    from orchestrator.simulation.checks import SimulationError
    from orchestrator.simulation.driver import simulate

    if faults == "list":
        from orchestrator.simulation.scenario import FAULT_CLASSES

        typer.echo("\n".join(FAULT_CLASSES))
        return
    chosen = _faults(faults)
    rows: list[dict[str, Any]] = []
    for number in range(seed, seed + seeds):
        made = _scenario(experiment, number, days, peers, epochs, chosen, trace, instance, matrix or ())
        if slot:
            _check_slot(slot, made)
        try:
            outcome = simulate(made)
        except SimulationError as error:
            raise RunFailedError(f"a promise was broken at {error}") from error
        rows.append(_row(outcome))
        if seeds > 1 and len(rows) % 50 == 0:
            say(f"{len(rows)} of {seeds} seeds")
        if slot:
            say("\n".join(story(outcome.journal, slot)))
    if output is Format.json:
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, "runs": rows}), nl=False)
    else:
        shown = [{**row, "budget_usd": row["budget_usd"] or "none"} for row in rows]
        typer.echo(rows_text("runs", shown if output is Format.table else rows, _TABLE, output), nl=False)


def _faults(text: str) -> tuple[FaultClass, ...]:
    from cloud.places import nearest
    from orchestrator.errors import UsageError
    from orchestrator.simulation.scenario import FAULT_CLASSES

    if text in ("all", "none"):
        return FAULT_CLASSES if text == "all" else ()
    wished = [word.strip() for word in text.split(",") if word.strip()]
    for word in wished:
        if word not in FAULT_CLASSES:
            near = nearest(word, FAULT_CLASSES)
            raise UsageError(
                f"--faults: '{word}' is no class of faults{near}; `orch simulate --faults list` names them"
            )
    return tuple(kind for kind in FAULT_CLASSES if kind in wished)


def _check_slot(slot: str, made: Scenario) -> None:
    from cloud.places import nearest
    from orchestrator.errors import UsageError

    names = [each.name for each in made.spec.slots]
    if slot not in names:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"--slot: '{slot[:80]}' is no slot of this run (there are {some}){nearest(slot[:80], names)}"
        )


def _scenario(
    experiment: str | None, seed: int, days: float, peers: int, epochs: int, faults: tuple[FaultClass, ...],
    trace: Path | None, instance: str, matrix: Sequence[str],
) -> Scenario:  # fmt: skip
    from cloud.sim.traces import TraceError, load_trace
    from orchestrator.errors import UsageError
    from orchestrator.simulation.scenario import faults_option, scenario

    if experiment is None:
        made = scenario(seed, days=days, peers=peers, faults=faults)
    else:
        from experiments.parse import load
        from orchestrator.simulation.experiments import of_experiment

        spec = load(experiment, (), matrix)
        made = of_experiment(spec, seed, days=days, faults=faults, epochs=epochs, environ=os.environ)
        which = "".join(f" --matrix {choice}" for choice in matrix)
        command = f"orch simulate {experiment}{which} --seed {seed} --days {days:g} --epochs {epochs}{faults_option(faults)}"
        made = replace(made, command=command)
    if trace is None:
        return made
    try:
        events = load_trace(trace, instance=instance)
    except TraceError as error:
        raise UsageError(str(error)) from error
    known = {place.location for place in made.places}
    if not any(event.location in known or event.location == "*" for event in events):
        raise UsageError(
            f"{trace}: tells of {events[0].location if events else 'nothing'}, the run is in {', '.join(sorted(known))}"
        )
    more = f" --trace {trace}" + (f" --instance {instance}" if instance else "")
    return replace(made, trace=(*made.trace, *events), command=made.command + more)


def _row(outcome: Outcome) -> dict[str, Any]:
    from dataclasses import asdict

    values = asdict(outcome)
    for name in ("journal", "simulated_s", "rounds", "calm_looks"):
        del values[name]
    return {**values, "hours": outcome.simulated_s / 3600.0}
