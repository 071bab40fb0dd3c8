"""`orch launch` and `orch attach`: plan, confirm, start, follow and report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.choosing import MatrixOption, Where
from orchestrator.cli.exits import DONE, INTERRUPTED
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import confirm, say

if TYPE_CHECKING:
    from orchestrator.launch.plan_run import RunPlan


class ResultForm(StrEnum):
    """Output format of a run's result."""

    text = "text"
    json = "json"


OutputOption = Annotated[ResultForm, typer.Option("--output", "-o", help="text or json.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("launch")(_launch)
    app.command("attach")(_attach)


def _launch(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="YAML file, or name of a shipped experiment (`orch experiments`).",
            show_default=False,
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a value, for example swarm.target_batch_size=8192. Repeatable.",
        ),
    ] = None,
    matrix: MatrixOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking for confirmation.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start the run, print its id and exit.")
    ] = False,
    output: OutputOption = ResultForm.text,
    run_id: Annotated[
        str,
        typer.Option(
            "--run-id",
            metavar="ID",
            help="Id for the run. A run with this id that is in progress is attached to.",
        ),
    ] = "",
    on: Annotated[
        Where | None,
        typer.Option(
            "--on",
            help="local: the emulated cloud of this machine; sky: VMs rented through SkyPilot. [local]",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and exit, without contacting or renting anything."),
    ] = False,
    plan_file: Annotated[
        str,
        typer.Option("--plan", metavar="PLAN", help="Launch exactly the plan saved by `orch plan -o FILE`."),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="RUN|URL",
            help="Begin with the newest checkpoint of another run: its id, or s3://bucket/prefix/<run id>[/<name>].",
        ),
    ] = "",
    price_tolerance: Annotated[
        float,
        typer.Option(min=0, max=10, help="Accept VM prices up to this fraction above the plan (0.1 = 10 %)."),
    ] = 0.1,
) -> None:
    """Run an experiment: plan, confirm, start, follow, report.

    The plan and the progress are printed on stderr, the result on stdout. --yes is required when there is no
    terminal. The first Ctrl-C asks what to do (without a terminal it tears the run down), a second one
    leaves the run running.

    A launch that is impossible is refused with all obstacles at once, before anything is asked or contacted.

    --dry-run prints the plan on stdout, as text or (-o json) as `orch plan -o json` does, without network or
    credentials. --plan launches the experiment stored in the plan, not its file, and refuses if a price has
    risen above the tolerance since.

    --from begins with a checkpoint of the same task in the run's own store, or of a local run; measure counts the
    epochs before it too, and its first epochs are the warm-up. It is looked up first, so not with --dry-run.

    Exit: 0 success, 1 failure, 2 invalid file or option, 3 stopped or declined (answer, budget), 4 no capacity,
    5 something may still be running, 6 the run is held by another controller, 7 stale plan, 130 interrupted.

    \b
    JSON: as `orch report RUN -o json`; with --detach {"schema_version", "run_id", "status"}
    """
    from orchestrator.cli.render.summary import plan_lines, plan_table, rent_question
    from orchestrator.cli.starting import checked_id, new_id, plan_from, plan_json, plan_verdict, saved_start
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder, run_folder

    home = home_folder()
    there = run_folder(home, checked_id(run_id)) / "run.db" if run_id else None
    tolerance = Decimal(str(price_tolerance))
    if dry_run and start:
        raise UsageError(
            "--dry-run contacts nothing, and --from must look for the checkpoint; omit one of them"
        )
    if dry_run:
        plan, _, approved = _choose(
            experiment, overrides or [], matrix or [], on, plan_file, tolerance, measure=False
        )
        if saved_start(approved or {}):
            raise UsageError(
                f"{plan_file} begins with a checkpoint, for which --dry-run must not look; `orch plan` with the same --from "
                "shows the plan"
            )
        parts = (*plan_verdict(plan), "", plan_table(plan.document) + "\n".join(plan_lines(plan.document)))
        text = "\n".join(parts)
        typer.echo(plan_json(plan) if output is ResultForm.json else text)
        say("dry run: nothing was contacted or rented")
        return
    from orchestrator.cli.bring_up import make_run, start_run
    from orchestrator.controller import client
    from orchestrator.launch.default_checkpoints import with_writable_checkpoints
    from orchestrator.launch.preflight import make_aws_role, preflight, refuse

    if there and there.is_file():
        say(f"{run_id} exists: attaching to it; the file, the plan, --from and --set are ignored")
        _watch(client.attach(run_id, home), home, detach, output)
        return
    plan, document, approved = _choose(
        experiment, overrides or [], matrix or [], on, plan_file, tolerance, measure=True
    )
    refuse(plan)
    if start := start or saved_start(approved or {}):
        plan = plan_from(plan, start, tolerance, approved)
        refuse(plan)
    plan = with_writable_checkpoints(plan)
    for line in (*plan_verdict(plan), *plan_lines(plan.document)):
        say(line)
    preflight(plan, home)
    confirm(
        rent_question(plan.document) if plan.target.rents else "Start this run?",
        yes=yes,
        refusal=f"{plan.spec.name} was not started: there is no terminal to ask for confirmation; add --yes",
    )
    make_aws_role(plan.spec, plan.on)
    new_run = run_id or new_id(plan.spec.name)
    try:
        make_run(plan, document, new_run, home)
    except UsageError:
        if there is None or not there.is_file():
            raise
        say(f"{new_run} was started by another `orch` process meanwhile: attaching to it")
        connection = client.attach(new_run, home)
    else:
        connection = start_run(new_run, home, plan.on)
    _watch(connection, home, detach, output)


def _choose(
    experiment: str,
    overrides: list[str],
    matrix: list[str],
    on: Where | None,
    plan_file: str,
    tolerance: Decimal,
    *,
    measure: bool,
) -> tuple[RunPlan, bytes, Mapping[str, Any] | None]:
    """Return the plan, the content of the experiment file, and the document of the saved plan, if it is from one.

    `measure`: read the size of a task's samples from its store.
    """
    from experiments.parse.load import load, source
    from orchestrator.cli.starting import plan_for
    from orchestrator.errors import UsageError
    from orchestrator.launch.store_reads import with_measured_samples

    if not plan_file:
        if not experiment:
            raise UsageError(
                "Missing argument FILE|NAME: give a file, the name of an experiment (see `orch experiments`), or --plan"
            )
        where = (on or Where.local).value
        spec = load(experiment, overrides, matrix)
        measured = with_measured_samples(spec, where) if measure else spec
        return plan_for(measured, where, tolerance), source(experiment, spec), None
    from importlib.metadata import version

    import yaml

    from experiments.parse.load import to_document
    from orchestrator.saved_plan import read_plan, refuse_if_stale

    if experiment or overrides or matrix:
        raise UsageError(
            "--plan contains its experiment: omit FILE, --matrix and --set, or make another plan with `orch plan`"
        )
    saved = read_plan(Path(plan_file), version("orch"))
    if on is not None and on.value != saved.on:
        raise UsageError(
            f"{plan_file} is a plan for --on {saved.on}, not {on.value}; make a new one with `orch plan --on {on.value}`"
        )
    document = yaml.safe_dump(to_document(saved.spec), sort_keys=False, allow_unicode=True).encode()
    check = partial(refuse_if_stale, saved, tolerance)
    return plan_for(saved.spec, saved.on, tolerance, saved.plan, check), document, saved.plan


def _attach(run: RunArgument, output: OutputOption = ResultForm.text) -> None:
    """Follow a run; restart its controller if it died.

    Exit codes and JSON are those of `orch launch`.
    """
    from orchestrator.controller import client

    found = find_run(run)
    _watch(client.attach(found.run_id, found.home), found.home, False, output)


def _watch(connection: Any, home: Path, detach: bool, output: ResultForm) -> None:
    """Follow a run to its end, print the result and exit with its exit code."""
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
    say(f"`orch attach {run_id}` follows it, `orch down {run_id}` tears it down")


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
        # Before the report, so that the numbers are printed even if the page cannot be built.
        typer.echo(as_json(summary), nl=False)
        sys.stdout.flush()
        say(f"report: {build_report(folder)}")
    else:
        for line in summary_lines(summary, str(build_report(folder))):
            typer.echo(line)
    return STATUS_CODES.get(status, 1)
