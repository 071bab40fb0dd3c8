"""`orch launch` and `attach`: plan, ask, start, watch, report."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.exits import DONE, INTERRUPTED
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.output import SCHEMA_VERSION, as_json
from orchestrator.cli.terminal import confirm, say

__all__ = ["ResultForm", "Where", "register"]


class ResultForm(StrEnum):
    """How the end of a run is printed."""

    text = "text"
    json = "json"


class Where(StrEnum):
    """What the VMs are."""

    local = "local"


OutputOption = Annotated[ResultForm, typer.Option("--output", "-o", help="text or json.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("launch")(_launch)
    app.command("attach")(_attach)


def _launch(
    experiment: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="A YAML file, or a name of the library.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Replace a value: swarm.target_batch_size=8192. Repeatable."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start, print the run's id, do not watch.")
    ] = False,
    output: OutputOption = ResultForm.text,
    run_id: Annotated[
        str,
        typer.Option("--run-id", metavar="ID", help="The run's id; one that runs already is attached to."),
    ] = "",
    on: Annotated[
        Where, typer.Option("--on", help="local: the emulated cloud of this machine.")
    ] = Where.local,
) -> None:
    """Run an experiment: show the plan, ask, start it, watch it, report.

    The plan and the progress go to stderr; stdout has the result only. Without a terminal --yes is
    needed. Ctrl-C once asks (off a terminal: takes the run down), twice leaves it running.

    Exit: 0 done, 1 failed, 2 wrong file or option, 3 stopped or refused (answer, budget), 4 no capacity,
    5 something may still be running, 6 another controller holds the run, 130 interrupted.

    \b
    JSON: as `orch report RUN -o json` (see there); with --detach {"schema_version", "run_id", "status"}
    """
    from experiments.spec.load import find, load
    from orchestrator.cli.starting import checked_id, cores, new_id, plan_for
    from orchestrator.cli.summary import plan_lines
    from orchestrator.controller import client
    from orchestrator.controller.launching import prepare
    from orchestrator.controller.preflight import preflight
    from orchestrator.home import home_folder, run_folder

    home = home_folder()
    if run_id and (run_folder(home, checked_id(run_id)) / "run.db").is_file():
        say(f"{run_id} exists: going on with it; the file and --set are not read again")
        _watch(client.attach(run_id, home), home, detach, output)
        return
    file = find(experiment)
    spec = load(experiment, overrides or ())
    plan = plan_for(spec)
    for line in plan_lines(plan):
        say(line)
    preflight(spec, home)
    confirm(
        "Start it?",
        yes=yes,
        refusal=f"{spec.name} was not started: there is no terminal to ask on, so add --yes",
    )
    wished = run_id or new_id(spec.name)
    try:
        prepare(spec, file, plan, wished, home, now_s=time.time(), cores=cores())
        connection = client.launch(wished, home)
    except KeyboardInterrupt:
        from orchestrator.cli.follow import take_down

        if (run_folder(home, wished) / "run.db").is_file():
            say(f"interrupted while starting: taking {wished} down")
            take_down(wished, home, "interrupted while starting")
        raise
    _watch(connection, home, detach, output)


def _attach(run: RunArgument, output: OutputOption = ResultForm.text) -> None:
    """Watch a run again; one whose controller died gets a new one and goes on.

    Exit codes and JSON as `orch launch`.
    """
    from orchestrator.controller import client

    found = find_run(run)
    _watch(client.attach(found.run_id, found.home), found.home, False, output)


def _watch(connection: Any, home: Path, detach: bool, output: ResultForm) -> None:
    """Follow a run that has a controller to its end, then print the result and leave with its code."""
    from orchestrator.cli.follow import choose_screen, follow

    if detach:
        _print_detached(connection.run_id, output)
        return
    outcome = follow(connection, home, choose_screen())
    if outcome.kind != "ended":
        raise typer.Exit(INTERRUPTED)
    code = _finish(connection.run_id, connection.folder, home, output, str(outcome.status))
    if code != DONE:
        raise typer.Exit(code)


def _print_detached(run_id: str, output: ResultForm) -> None:
    if output is ResultForm.json:
        typer.echo(
            as_json({"schema_version": SCHEMA_VERSION, "run_id": run_id, "status": "running"}), nl=False
        )
    else:
        typer.echo(run_id)
    say(f"`orch attach {run_id}` watches it, `orch down {run_id}` takes it down")


def _finish(run_id: str, folder: Path, home: Path, output: ResultForm, status: str) -> int:
    from orchestrator.cli.report_commands import build_report, summary_of
    from orchestrator.cli.summary import summary_lines
    from orchestrator.controller import client
    from orchestrator.errors import STATUS_CODES

    error = client.snapshot(run_id, home).get("error")
    if error:
        say(f"{run_id} {status}: {error}")
    summary = summary_of(folder)
    if output is ResultForm.json:
        # Before the report: whoever reads the numbers should have them even if the page fails.
        typer.echo(as_json(summary), nl=False)
        sys.stdout.flush()
        say(f"report: {build_report(folder)}")
    else:
        for line in summary_lines(summary, str(build_report(folder))):
            typer.echo(line)
    return STATUS_CODES.get(status, 1)
