"""`orch check`: whether a run can start from this machine, and what is missing."""

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
        typer.Option(
            "--on", help="Where the run would be: local (this machine) or sky (VMs rented through SkyPilot)."
        ),
    ] = Where.local,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Also query the clouds: whether credentials are accepted, quotas, clock offset."
        ),
    ] = False,
    aws_role: Annotated[
        str | None,
        typer.Option(
            "--aws-role",
            metavar="FILE|NAME",
            help="Only print the commands with which an administrator creates the IAM role of this experiment's AWS VMs "
            "and allows your user to pass it to them, for when your own credentials may not. Offline.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --aws-role: override a value of the experiment. Repeatable.",
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Check whether a run can start from this machine.

    Checks packages, clouds, ports, disk and memory. Each line that is not ok is followed by what to do about
    it. Works offline unless --online is given, from files, the environment and this machine. Secrets are only
    checked for presence; their values are neither kept nor shown.

    Exit: 0 nothing that was checked prevents a run on --on, 2 something required is missing; with --aws-role 2
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
        typer.echo(f"{spec.name} has no places on AWS and needs no IAM role", err=True)
        raise typer.Exit(WRONG)
    typer.echo(commands(aws_buckets(spec)), nl=False)
    typer.echo(
        "In the last command, replace YOUR-USER by the IAM user who launches. For an identity other than an IAM user (a "
        "role, single sign-on), add the policy document to that role or permission set instead.",
        err=True,
    )


def _lines(findings: list[Finding]) -> list[str]:
    """Format each finding as a line, followed by what to do about it."""
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
        text = "not checked: clouds are contacted with --online only"
        return [*found, Finding("clock, quotas, acceptance", "unknown", text, "`orch check --online`")]
    from cloud.vendors import AWS, RENTABLE
    from orchestrator.checks import online as asked

    names = [finding.check.split()[-1] for finding in known if finding.state == "ok"]
    found += [*asked.accepted(names), *(asked.clock(name) for name in names or list(RENTABLE)[:1])]
    return [*found, *(asked.quotas() if AWS.name in names else ())]
