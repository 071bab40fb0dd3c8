"""`orch simulate`: the real controller on a virtual clock, against a simulated cloud with faults."""

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
        typer.Argument(metavar="[FILE|NAME]", help="Experiment to simulate. [generated slots in five zones]"),
    ] = None,
    matrix: MatrixOption = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the fault history; the same seed gives the same run.")
    ] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run, starting at --seed.")] = 1,
    days: Annotated[
        float, typer.Option(min=0.01, max=366, help="Maximum duration of the run in days.")
    ] = 1.0,
    peers: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of slots, without an experiment.")
    ] = 8,
    epochs: Annotated[
        int, typer.Option(min=0, help="With an experiment: epochs after which peers are done; 0: never.")
    ] = 0,
    faults: Annotated[
        str, typer.Option(help="all, none, or comma-separated fault classes; `--faults list` lists them.")
    ] = "all",
    trace: Annotated[
        Path | None,
        typer.Option(help="History of a spot market: orch's CSV, or an AWS spot price history as JSON."),
    ] = None,
    instance: Annotated[str, typer.Option(help="Instance type to use from an AWS history.")] = "",
    slot: Annotated[str, typer.Option(help="Also print the state changes of this slot on stderr.")] = "",
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Simulate days of a run in a second, with faults.

    Faults are preemptions, capacity shortages, API failures, controller crashes and others. The decisions are
    those of the real controller; the cloud, the peers and the clock are simulated. After every event the
    controller's invariants are checked: every VM is in the journal, spending stays within the budget, one VM
    per slot and generation, progress while there is capacity, everything terminated in time. On a violation the
    command exits with 1 and prints how to reproduce it. An experiment uses the places and prices of `orch plan
    --on sky`; traffic is neither billed nor included in the budget reserve.

    \b
    JSON: {"schema_version", "runs": [{"seed", "status" (done, stopped: the time was over, budget, failed,
      no_capacity, lost: the controller never came back), "cause", "hours", "vms", "preemptions",
      "replacements", "refusals", "vm_hours", "spent_usd", "budget_usd", "epochs", "samples",
      "training_share" (of the VM hours), "median_joining_s" (request to training), "restarts"
      (of the controller), "writes" (to the journal), "dead_after_s" (stop to the last VM's end),
      "fired" {fault class: number of faults}}]}
    Exit: 0 all invariants held, 1 an invariant was violated, 2 invalid command, experiment or trace, 3 the
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
            raise RunFailedError(f"an invariant was violated at {error}") from error
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
    requested = [word.strip() for word in text.split(",") if word.strip()]
    for word in requested:
        if word not in FAULT_CLASSES:
            near = nearest(word, FAULT_CLASSES)
            raise UsageError(
                f"--faults: '{word}' is not a fault class{near}; `orch simulate --faults list` lists them"
            )
    return tuple(kind for kind in FAULT_CLASSES if kind in requested)


def _check_slot(slot: str, made: Scenario) -> None:
    from cloud.places import nearest
    from orchestrator.errors import UsageError

    names = [each.name for each in made.spec.slots]
    if slot not in names:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"--slot: '{slot[:80]}' is not a slot of this run (slots: {some}){nearest(slot[:80], names)}"
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
            f"{trace}: covers {events[0].location if events else 'no location'}, but the run is in {', '.join(sorted(known))}"
        )
    more = f" --trace {trace}" + (f" --instance {instance}" if instance else "")
    return replace(made, trace=(*made.trace, *events), command=made.command + more)


def _row(outcome: Outcome) -> dict[str, Any]:
    from dataclasses import asdict

    values = asdict(outcome)
    for name in ("journal", "simulated_s", "rounds", "fault_free_checks"):
        del values[name]
    return {**values, "hours": outcome.simulated_s / 3600.0}
