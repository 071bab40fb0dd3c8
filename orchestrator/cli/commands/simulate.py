"""`orch simulate`: the real controller on a virtual clock, against a simulated cloud with faults."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.choosing import MatrixOption
from orchestrator.cli.commands.simulate_spot import SpotOptions, compare_policies
from orchestrator.cli.exits import FAILED
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from experiments.schema.models import ExperimentSpec
    from orchestrator.simulation.driver import Outcome
    from orchestrator.simulation.scenario import FaultClass

_PEERS = 8
_NOT_SHOWN = {
    "journal", "simulated_s", "rounds", "fault_free_checks", "trained_s", "below_min_peers_s", "lost_samples",
}  # fmt: skip
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
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a value of the experiment, for example budget_usd=5. Repeatable.",
        ),
    ] = None,
    matrix: MatrixOption = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the fault history; the same seed gives the same run.")
    ] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run, starting at --seed.")] = 1,
    days: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=366,
            help="Maximum duration of the run in days. [1; with --spot as long as the histories]",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Number of slots, without an experiment. [8]", show_default=False
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With an experiment: epochs after which peers are done; 0: never. [those of 'measure']",
            show_default=False,
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            help="all, none, or comma-separated fault classes; `--faults list` lists them. [all; with --spot none]",
            show_default=False,
        ),
    ] = None,
    spot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PLACE=]FILE",
            help="History of spot capacity at a place of the experiment, '*' for every other place; or a folder of files "
            "that are named after zones. Repeatable.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="With --spot: replacement policies to compare, comma-separated, or all. [the experiment's own]",
            show_default=False,
        ),
    ] = None,
    restart_s: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1200,
            help="With --spot: seconds from the request of a VM until its peer trains. [390]",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Events of a spot market, such as prices and preemptions: orch's CSV, or an AWS spot price history as JSON."
        ),
    ] = None,
    instance: Annotated[str, typer.Option(help="Instance type to use from an AWS history.")] = "",
    slot: Annotated[str, typer.Option(help="Also print the state changes of this slot on stderr.")] = "",
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Simulate days of a run in a second, with faults.

    Shows how a run on rented VMs copes with preemptions, capacity shortages, API failures, controller crashes and
    other faults; nothing is rented or trained. The decisions are those of the real controller; the cloud, the peers
    and the clock are simulated. After every event the
    controller's invariants are checked: every VM is in the journal, spending stays within the budget, one VM
    per slot and generation, progress while there is capacity, everything terminated in time. On a violation the
    command exits with 1 and prints how to reproduce it. An experiment uses the places and prices of `orch plan
    --on sky`, its budget and limits, the epochs of `measure` and the preemptions that it plans; what is ignored,
    traffic for example, is named on stderr.

    With --spot, VMs are lost and refused as in histories of spot capacity (docs/simulate-spot.md). One row per
    replacement policy shows what it reached; further rows show reference policies and the oracle's optimum.

    \b
    JSON: {"schema_version", "ignored": [] (what of the experiment is left out), "runs": [{"seed", "status" (done,
      stopped: the time was over, budget, failed, no_capacity, lost: the controller never came back), "cause",
      "hours", "vms", "preemptions", "replacements", "refusals", "vm_hours", "spent_usd", "budget_usd", "epochs",
      "samples", "lost_epochs" (with all peers), "training_share" (of the VM hours), "median_joining_s"
      (request to training), "restarts" (of the controller), "writes" (to the journal), "dead_after_s"
      (stop to the last VM's end), "fired" {fault class: number of faults}}]}
    JSON with --spot: {"schema_version", "ignored", "restart_s", "histories": [{"place", "source", "sha256", "days",
      "availability"}], "policies": [{"policy", "runs" (number of seeds; the other figures are means), "time_training"
      (share of the peers' time), "regret" (of the oracle's share), "samples", "spent_usd", "usd_per_1m", "reached"
      (runs that trained the last epoch), "hours_to_target" (of these), "below_min_peers_h", "lost_samples",
      "lost_epochs", "preemptions", "refusals", "ended" {status: runs}}], "references": [{"policy", "time_training",
      "regret"}], "runs": [{"policy", "seed", "from_s" (of the histories), "status", "cause", "hours", the figures of
      "policies", "epochs", "replacements", "vm_hours", "median_joining_s"}]}
    Exit: 0 all invariants held, 1 an invariant was violated, or the controller of a run was lost, 2 invalid
    command, experiment, history or trace, 3 the experiment's budget or limits are refused.
    """
    from orchestrator.cli.scenario_options import check_slot, with_trace
    from orchestrator.core.journal import story
    from orchestrator.errors import RunFailedError, UsageError
    from orchestrator.simulation.checks import SimulationError
    from orchestrator.simulation.driver import simulate
    from orchestrator.simulation.experiments import ignored, measured_epochs, of_experiment
    from orchestrator.simulation.scenario import scenario

    if faults == "list":
        from orchestrator.simulation.scenario import FAULT_CLASSES

        typer.echo("\n".join(FAULT_CLASSES))
        return
    chosen = _faults(faults if faults is not None else "none" if spot else "all")
    spec = _experiment(experiment, overrides or (), matrix or (), peers, epochs)
    if spot:
        if spec is None:
            raise UsageError("--spot: only with an experiment, which has the places; add FILE|NAME")
        options = SpotOptions(spot, policy, restart_s, days, epochs, chosen, trace, instance, slot)
        words = _words(experiment, overrides or (), matrix or (), days, epochs)
        words += [word for each in spot for word in ("--spot", each)]
        words += [] if restart_s is None else ["--restart-s", f"{restart_s:g}"]
        words += ["--faults", ",".join(chosen)] if chosen else []
        compare_policies(spec, options, range(seed, seed + seeds), output, words)
        return
    unused = [name for name, value in (("--policy", policy), ("--restart-s", restart_s)) if value is not None]
    if unused:
        raise UsageError(f"{' and '.join(unused)}: only with --spot; add --spot PLACE=FILE")
    days = 1.0 if days is None else days
    command = _command(experiment, overrides or (), matrix or (), days, epochs, chosen)
    left_out: list[str] = []
    if spec is not None:
        left_out = ignored(spec)
        if epochs is None:
            say(
                f"{spec.name}: {measured_epochs(spec)} epochs, those of 'measure'; with --epochs 0 until --days are over"
            )
        say("\n".join(f"ignored: {what}" for what in left_out))
    rows: list[dict[str, Any]] = []
    for number in range(seed, seed + seeds):
        if spec is None:
            made = scenario(number, days=days, peers=peers or _PEERS, faults=chosen)
        else:
            made = of_experiment(spec, number, days=days, faults=chosen, epochs=epochs, environ=os.environ)
            made = replace(made, command=f"{command} --seed {number}")
        if trace is not None:
            made = with_trace(made, trace, instance)
        if slot:
            check_slot(slot, made)
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
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, "ignored": left_out, "runs": rows}), nl=False)
    else:
        shown = [{**row, "budget_usd": row["budget_usd"] or "none"} for row in rows]
        typer.echo(rows_text("runs", shown if output is Format.table else rows, _TABLE, output), nl=False)
    lost = [row["seed"] for row in rows if row["status"] == "lost"]
    if lost:
        seeds_of = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        say(f"{len(lost)} of {len(rows)} runs were lost, their controller never came back: seed {seeds_of}")
        raise typer.Exit(FAILED)


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


def _experiment(
    name: str | None,
    overrides: Sequence[str],
    matrix: Sequence[str],
    peers: int | None,
    epochs: int | None,
) -> ExperimentSpec | None:
    """Load the experiment; None: none was named. Raises SpecError, UsageError for an option that does not apply."""
    from experiments.parse import load
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder
    from orchestrator.launch.task_facts import resolve_task

    given = {"--set": overrides, "--matrix": matrix, "--epochs": epochs is not None}
    if name is None:
        unused = [option for option, value in given.items() if value]
        if unused:
            raise UsageError(f"{' and '.join(unused)}: only with an experiment; add FILE|NAME")
        return None
    if peers is not None:
        raise UsageError(
            "--peers: only without an experiment, which has its own; use --set peers.GROUP.count=N"
        )
    spec, obstacles = resolve_task(load(name, overrides, matrix), home_folder())
    if obstacles:
        raise UsageError(f"{spec.name}: {obstacles[0].text}")
    return spec


def _command(
    experiment: str | None,
    overrides: Sequence[str],
    matrix: Sequence[str],
    days: float,
    epochs: int | None,
    faults: Sequence[FaultClass],
) -> str:
    """Return the command that simulates this experiment, without the seed and the trace."""
    from orchestrator.simulation.scenario import faults_option

    return shlex.join(_words(experiment, overrides, matrix, days, epochs)) + faults_option(faults)


def _words(
    experiment: str | None,
    overrides: Sequence[str],
    matrix: Sequence[str],
    days: float | None,
    epochs: int | None,
) -> list[str]:
    words = ["orch", "simulate", experiment or ""]
    words += [word for override in overrides for word in ("--set", override)]
    words += [word for choice in matrix for word in ("--matrix", choice)]
    words += [] if days is None else ["--days", f"{days:g}"]
    return words + ([] if epochs is None else ["--epochs", str(epochs)])


def _row(outcome: Outcome) -> dict[str, Any]:
    names = (f.name for f in fields(outcome) if f.name not in _NOT_SHOWN)
    return {**{name: getattr(outcome, name) for name in names}, "hours": outcome.simulated_s / 3600.0}
