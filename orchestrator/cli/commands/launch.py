"""`orch launch` and `attach`: plan, ask, start, watch, report."""

from __future__ import annotations

import sys
from decimal import Decimal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.choosing import MatrixOption
from orchestrator.cli.exits import DONE, INTERRUPTED
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import confirm, say

if TYPE_CHECKING:
    from orchestrator.launch.plan_run import RunPlan


class ResultForm(StrEnum):
    """How the end of a run is printed."""

    text = "text"
    json = "json"


class Where(StrEnum):
    """What the VMs are."""

    local = "local"
    sky = "sky"


OutputOption = Annotated[ResultForm, typer.Option("--output", "-o", help="text or json.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("launch")(_launch)
    app.command("attach")(_attach)


def _launch(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="A YAML file, or a name of the library.", show_default=False
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Replace a value: swarm.target_batch_size=8192. Repeatable."
        ),
    ] = None,
    matrix: MatrixOption = None,
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
        Where | None,
        typer.Option(
            "--on",
            help="local: the emulated cloud of this machine; sky: VMs rented through SkyPilot. [local]",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and end: nothing is contacted or rented.")
    ] = False,
    plan_file: Annotated[
        str,
        typer.Option("--plan", metavar="PLAN", help="Launch a plan that `orch plan -o FILE` saved, exactly."),
    ] = "",
    price_tolerance: Annotated[
        float,
        typer.Option(
            min=0, max=10, help="A VM may be dearer than planned by this share of its price; 0.1: 10 %."
        ),
    ] = 0.1,
) -> None:
    """Run an experiment: show the plan, ask, start it, watch it, report.

    The plan and the progress go to stderr; stdout has the result only. Without a terminal --yes is
    needed. Ctrl-C once asks (off a terminal: takes the run down), twice leaves it running.

    --dry-run prints the plan on stdout, as text or (-o json) as `orch plan -o json`, from files only: no
    network, no credentials. --plan takes the experiment from the plan, not from its file, and refuses when
    a price rose above the tolerance since.

    Exit: 0 done, 1 failed, 2 wrong file or option, 3 stopped or refused (answer, budget), 4 no capacity,
    5 something may still be running, 6 another controller holds the run, 7 stale plan, 130 interrupted.

    \b
    JSON: as `orch report RUN -o json` (see there); with --detach {"schema_version", "run_id", "status"}
    """
    from orchestrator.cli.render.summary import plan_lines, plan_table, rent_question
    from orchestrator.cli.starting import checked_id, new_id, plan_json
    from orchestrator.home import home_folder, run_folder

    home = home_folder()
    there = run_folder(home, checked_id(run_id)) / "run.db" if run_id else None
    tolerance = Decimal(str(price_tolerance))
    if dry_run:
        plan, _ = _choose(experiment, overrides or [], matrix or [], on, plan_file, tolerance)
        text = plan_table(plan.document) + "\n".join(plan_lines(plan.document))
        typer.echo(plan_json(plan) if output is ResultForm.json else text)
        say("dry run: nothing was contacted and nothing was rented")
        return
    from orchestrator.cli.bring_up import make_run, start_run
    from orchestrator.controller import client
    from orchestrator.errors import UsageError
    from orchestrator.launch.preflight import make_aws_role, preflight

    if there and there.is_file():
        say(f"{run_id} exists: going on with it; the file, the plan and --set are not read again")
        _watch(client.attach(run_id, home), home, detach, output)
        return
    plan, document = _choose(experiment, overrides or [], matrix or [], on, plan_file, tolerance)
    for line in plan_lines(plan.document):
        say(line)
    plan.refuse()
    preflight(plan, home)
    confirm(
        rent_question(plan.document) if plan.target.rents else "Start it?",
        yes=yes,
        refusal=f"{plan.spec.name} was not started: there is no terminal to ask on, so add --yes",
    )
    make_aws_role(plan.spec, plan.on)
    wished = run_id or new_id(plan.spec.name)
    try:
        make_run(plan, document, wished, home)
    except UsageError:
        if there is None or not there.is_file():
            raise
        say(f"{wished} was started by another `orch` meanwhile: going on with that")
        connection = client.attach(wished, home)
    else:
        connection = start_run(wished, home, plan.on)
    _watch(connection, home, detach, output)


def _choose(
    experiment: str,
    overrides: list[str],
    matrix: list[str],
    on: Where | None,
    plan_file: str,
    tolerance: Decimal,
) -> tuple[RunPlan, bytes]:
    """The plan and the experiment's file, from that file or from a saved plan."""
    from experiments.parse.load import load, source
    from orchestrator.cli.starting import plan_for
    from orchestrator.errors import UsageError

    if not plan_file:
        if not experiment:
            raise UsageError(
                "Missing argument FILE|NAME: name a file, or a name that `orch experiments` lists, or give --plan"
            )
        where = (on or Where.local).value
        spec = load(experiment, overrides, matrix)
        return plan_for(spec, where, tolerance), source(experiment, spec)
    from importlib.metadata import version

    import yaml

    from experiments.parse.load import to_document
    from orchestrator.saved_plan import read_plan, refuse_if_stale

    if experiment or overrides or matrix:
        raise UsageError(
            "--plan has its experiment in it: leave the file, --matrix and --set out, or make another plan by `orch plan`"
        )
    saved = read_plan(Path(plan_file), version("orch"))
    if on is not None and on.value != saved.on:
        raise UsageError(
            f"{plan_file}: is a plan for --on {saved.on}, not {on.value}; make one by `orch plan --on {on.value}`"
        )
    document = yaml.safe_dump(to_document(saved.spec), sort_keys=False, allow_unicode=True).encode()
    check = partial(refuse_if_stale, saved, tolerance)
    return plan_for(saved.spec, saved.on, tolerance, saved.plan, check), document


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
    from orchestrator.cli.commands.report import build_report, summary_of
    from orchestrator.cli.render.summary import summary_lines
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
