"""`orch check`: can a run be started from here, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.checks.findings import Finding, usable
from orchestrator.cli.commands.launch import Where
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

_COLUMNS = ("check", "state", "found", "next")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("check")(_check)


def _check(
    on: Annotated[
        Where,
        typer.Option("--on", help="What is to run: on this machine, or on VMs rented through SkyPilot."),
    ] = Where.local,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Ask the clouds too: are credentials accepted, quotas, is this clock right?"
        ),
    ] = False,
    aws_role: Annotated[
        str | None,
        typer.Option(
            "--aws-role",
            metavar="FILE|NAME",
            help="Only print the commands by which an administrator makes the role that this experiment's VMs on AWS "
            "have and lets your user give it to them, where your own credentials may not; contacts nothing.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --aws-role: override a key of the experiment. Repeatable.",
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Check whether a run can start from here: packages, clouds, ports, memory; each line says what to do.

    Offline unless --online is given: looks at files, the environment and this machine only. Of secrets only
    whether they are there is looked at, and shown.

    Exit: 0 the run wanted (--on) can start as far as was looked, 2 something is missing for it; with --aws-role 2
    for an experiment without places on AWS.

    \b
    JSON: {"schema_version", "on", "online", "usable", "findings": [{"check", "state": "ok"|"warning"|
      "missing"|"unknown", "found", "next"}]}
    """

    from orchestrator.cli.exits import WRONG

    if aws_role is not None:
        _print_aws_role(aws_role, overrides or ())
        return
    findings = _findings(on.value, online)
    rows = [asdict(finding) for finding in findings]
    can = usable(findings)
    if output is Format.json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "on": on.value,
            "online": online,
            "usable": can,
            "findings": rows,
        }
        typer.echo(as_json(document), nl=False)
    elif output is Format.table:
        for line in _lines(findings):
            typer.echo(line)
    else:
        typer.echo(rows_text("findings", rows, _COLUMNS, output), nl=False)
    if not can:
        raise typer.Exit(WRONG)


def _print_aws_role(experiment: str, overrides: Sequence[str]) -> None:
    from cloud.sky.aws.role import commands
    from experiments.parse import SpecError, load
    from orchestrator.cli.exits import WRONG
    from orchestrator.launch.rent_checks import aws_buckets, has_aws_places

    try:
        spec = load(experiment, overrides)
    except SpecError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(WRONG) from error
    if not has_aws_places(spec):
        typer.echo(f"{spec.name} has no places on AWS, so its VMs need no role there", err=True)
        raise typer.Exit(WRONG)
    typer.echo(commands(aws_buckets(spec)), nl=False)
    typer.echo(
        "Put the name of the user who launches for YOUR-USER in the last command; for an identity that is no IAM user (a "
        "role, single sign-on), add its policy document to that role or permission set.",
        err=True,
    )


def _lines(findings: list[Finding]) -> list[str]:
    """A line each, and below it what to do."""
    wide = max(len(finding.check) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.check:<{wide}}  {finding.found}")
        if finding.next and finding.state != "ok":
            lines.append(f"{'':<8} {'':<{wide}}  -> {finding.next}")
    return lines


def _findings(on: str, online: bool) -> list[Finding]:
    from cloud.targets import TARGETS
    from orchestrator.checks import clouds, machine
    from orchestrator.home import home_folder

    rents = TARGETS[on].rents
    found = [*machine.versions(on), machine.disk(home_folder(), on), machine.memory(on)]
    if rents:
        found += [*machine.ports(), clouds.owner(home_folder())]
    else:
        found.append(machine.namespaces())
    known = clouds.credentials(os.environ, wanted=rents)
    found += [*known, *clouds.catalogs(os.environ)]
    if not online:
        text = "not asked: only --online contacts a cloud"
        return [*found, Finding("clock, quotas, acceptance", "unknown", text, "`orch check --online`")]
    from cloud.vendors import AWS, RENTED
    from orchestrator.checks import online as asked

    names = [finding.check.split()[-1] for finding in known if finding.state == "ok"]
    found += [*asked.accepted(names), *(asked.clock(name) for name in names or list(RENTED)[:1])]
    return [*found, *(asked.quotas() if AWS.name in names else ())]
