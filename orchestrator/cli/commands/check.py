"""`orch check`: whether a run can start from this machine, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.checks.findings import Finding, usable
from orchestrator.cli.choosing import MatrixOption, Where
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

if TYPE_CHECKING:
    from experiments.schema.models import ExperimentSpec

_COLUMNS = ("check", "state", "found", "next")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("check")(_check)


def _check(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="Also check what this experiment needs, and only the clouds where it rents VMs.",
            show_default=False,
        ),
    ] = "",
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
            help="Override a value of the experiment. Repeatable.",
        ),
    ] = None,
    matrix: MatrixOption = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Check whether a run can start from this machine.

    Checks packages, clouds, ports, disk and memory, and with FILE|NAME whether that experiment can be launched from
    here. Each line that is not ok is followed by what to do about it; the last line is the verdict. `orch plan` shows
    what the experiment would cost. Works offline unless --online is given, from files, the environment and this
    machine. Secrets are only checked for presence; their values are neither kept nor shown.

    Exit: 0 nothing that was checked prevents a run where --on says, 2 something required is missing; with --aws-role
    2 for an experiment without places on AWS.

    \b
    JSON: {"schema_version", "on", "online", "experiment" (its name or null), "usable", "verdict", "findings":
      [{"check", "state": "ok"|"warning"|"missing"|"unknown", "found", "next"}]}
    """

    from orchestrator.cli.exits import WRONG
    from orchestrator.errors import UsageError

    if aws_role is not None:
        if experiment:
            raise UsageError("FILE|NAME and --aws-role are two commands: give one of them")
        _print_aws_role(aws_role, overrides or ())
        return
    spec = _experiment(experiment, overrides or (), matrix or ())
    findings = _findings(on.value, online, spec)
    rows = [asdict(finding) for finding in findings]
    can = usable(findings)
    last = _verdict(on.value, findings, None if spec is None else spec.name)
    if output is Format.json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "on": on.value,
            "online": online,
            "experiment": None if spec is None else spec.name,
            "usable": can,
            "verdict": last,
            "findings": rows,
        }
        typer.echo(as_json(document), nl=False)
    elif output is Format.table:
        for line in (*_lines(findings), last):
            typer.echo(line)
    else:
        typer.echo(rows_text("findings", rows, _COLUMNS, output), nl=False)
    if not can:
        raise typer.Exit(WRONG)


def _print_aws_role(experiment: str, overrides: Sequence[str]) -> None:
    from cloud.sky.aws.role import commands
    from experiments.parse import SpecError, load
    from orchestrator.cli.exits import WRONG
    from orchestrator.launch.default_checkpoints import with_default_checkpoints
    from orchestrator.launch.rent_checks import aws_buckets, aws_written, has_aws_places

    try:
        spec = load(experiment, overrides)
    except SpecError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(WRONG) from error
    if not has_aws_places(spec):
        typer.echo(f"{spec.name} has no places on AWS and needs no IAM role", err=True)
        raise typer.Exit(WRONG)
    spec, _ = with_default_checkpoints(spec, "sky")
    typer.echo(commands(aws_buckets(spec), written=aws_written(spec)), nl=False)
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


def _experiment(name: str, overrides: Sequence[str], matrix: Sequence[str]) -> ExperimentSpec | None:
    """Load the experiment to check for; None: none was named. Raises SpecError, UsageError."""
    from experiments.parse import load
    from orchestrator.errors import UsageError

    if name:
        return load(name, overrides, matrix)
    if overrides or matrix:
        raise UsageError("--set and --matrix need an experiment: add FILE|NAME, or use --aws-role FILE|NAME")
    return None


def _findings(on: str, online: bool, spec: ExperimentSpec | None) -> list[Finding]:
    from cloud.targets import TARGETS
    from cloud.vendors import AWS, RENTABLE
    from orchestrator.checks import clouds, machine
    from orchestrator.home import home_folder
    from orchestrator.launch.rent_checks import clouds_of

    rents = TARGETS[on].rents
    found = [*machine.versions(on), machine.disk(home_folder(), on), machine.memory(on)]
    if rents:
        found += [*machine.ports(), clouds.owner(home_folder())]
    else:
        found.append(machine.namespaces())
    needed = list(RENTABLE)
    if spec is not None:  # a run on this machine needs no cloud
        needed = [cloud for cloud in clouds_of(spec) if rents and cloud in RENTABLE]
    known = clouds.credentials(os.environ, needed, wanted=rents, each=spec is not None)
    found += [*known, *clouds.catalogs(os.environ, needed)]
    if spec is not None:
        found += _of_experiment(on, spec)
    if not online:
        text = "not checked: clouds are contacted with --online only"
        return [*found, Finding("clock, quotas, acceptance", "unknown", text, "`orch check --online`")]
    from orchestrator.checks import online as asked

    names = [finding.check.split()[-1] for finding in known if finding.state == "ok"]
    found += [*asked.accepted(names), *(asked.clock(name) for name in names or list(RENTABLE)[:1])]
    return [*found, *(asked.quotas() if AWS.name in names else ())]


def _of_experiment(on: str, spec: ExperimentSpec) -> list[Finding]:
    """The obstacles of a launch that no other finding is about."""
    from orchestrator.cli.starting import plan_for
    from orchestrator.launch.machine_checks import machine_obstacles
    from orchestrator.launch.obstacles import ObstacleCode, ObstacleGroup

    checked = (ObstacleCode.PACKAGES, ObstacleCode.CREDENTIALS)
    against = [
        *plan_for(spec, on).obstacles,
        *(each for each in machine_obstacles(spec, on, os.environ) if each.code not in checked),
    ]
    if not against:
        return [Finding("experiment", "ok", f"{spec.name} needs no change")]
    return [
        Finding(
            "secrets" if each.group is ObstacleGroup.MACHINE else f"experiment {each.code}",
            "missing",
            each.text,
        )
        for each in against
    ]


def _verdict(on: str, findings: Sequence[Finding], experiment: str | None) -> str:
    """Sum the findings up in a sentence: what is ready, and what is missing, for the experiment if there is one."""
    from cloud.targets import TARGETS
    from cloud.vendors import RENTABLE

    states = {finding.check: finding.state for finding in findings}
    clouds = [vendor.title for name, vendor in RENTABLE.items() if states.get(f"credentials {name}") == "ok"]
    missing = _missing_words(findings, every_cloud=experiment is not None)
    if missing:
        found = f"{_and(clouds)} {'has' if len(clouds) == 1 else 'have'} credentials; " if clouds else ""
        return f"{found}missing{f' for {experiment}' if experiment else ''}: {', '.join(missing)}"
    ready = clouds if TARGETS[on].rents else ["this machine"]
    enough = f"; that is enough for {experiment}" if experiment else ""
    return f"{_and(ready)} {'is' if len(ready) == 1 else 'are'} ready{enough}"


def _missing_words(findings: Sequence[Finding], *, every_cloud: bool) -> list[str]:
    """Name what is missing, each kind once."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        if finding.state == "missing":
            kind, _, name = finding.check.partition(" ")
            kinds.setdefault(kind, []).append(name)
    words: list[str] = []
    for kind, names in kinds.items():
        match kind:
            case "version":
                words.append(f"{_and(names)} (not installed)")
            case "credentials":
                of = _and(names) if every_cloud else f"one of {', '.join(names)}"
                words.append(f"credentials of {of}")
            case "experiment":
                words.append(f"{len(names)} change{'s' if len(names) > 1 else ''} of the experiment")
            case "secrets":
                words.append("values of secrets")
            case _:
                words.extend(f"{kind} {name}".strip() for name in names)
    return words


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
