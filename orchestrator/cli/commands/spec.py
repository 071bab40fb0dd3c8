"""`orch validate`, `show`, `schema` and `experiments`: offline commands for experiment files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from experiments.parse import Problem, SpecError, json_schema, library, load_all, to_document
from experiments.schema.models import ExperimentSpec
from orchestrator.cli.choosing import MatrixOption, Where
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text


class _Report(StrEnum):
    text = "text"
    json = "json"


class _Document(StrEnum):
    yaml = "yaml"
    json = "json"


_Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value, for example swarm.target_batch_size=8192, peers[0].count=2 or peers.us.count=2. "
        "Repeatable.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands to the app."""
    app.command("validate")(_validate)
    app.command("show")(_show)
    app.command("schema")(_schema)
    app.command("experiments")(_experiments)


def _validate(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, or names of shipped experiments.")
    ],
    overrides: _Overrides = None,
    matrix: MatrixOption = None,
    on: Annotated[
        Where | None,
        typer.Option(
            "--on",
            help="Judge only launches there: local (this machine) or sky (rented VMs). [both]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[_Report, typer.Option("-o", "--output", help="text or json.")] = _Report.text,
) -> None:
    """Validate experiment files.

    Works offline and without credentials. All problems of a file are listed at once, with line and column, and all
    experiments of a file with a matrix are validated. Each valid file gets a verdict: whether its experiments can be
    launched as they are on this machine (local) and on rented VMs (sky). The obstacles of an experiment that can be
    launched on neither are listed; `orch plan` lists those of one target. A task is not built.

    Exit: 0 all files are valid, 2 a file is invalid, 3 an experiment can be launched on neither, or not where --on
    says.

    \b
    JSON: {"schema_version": 1, "files": [{"file", "ok", "name", "peers", "problems": [{"file", "line",
      "column", "path", "message"}], "experiments": [{"name", "peers", "targets": [{"on": "local"|"sky",
      "launchable", "obstacles": [{"code", "text"}]}]}]}]}; name and peers are null if a file has several
      experiments
    """
    from orchestrator.cli.exits import REFUSED, WRONG

    targets = tuple(Where) if on is None else (on,)
    rows = [_checked(file, overrides or (), matrix or (), targets) for file in files]
    if output is _Report.json:
        listed = [{**row, "problems": [asdict(p) for p in row["problems"]]} for row in rows]
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, "files": listed}), nl=False)
    else:
        for row in rows:
            for problem in row["problems"]:
                typer.echo(str(problem), err=True)
            for line in _verdict_lines(row):
                typer.echo(line)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(WRONG)
    if any(_launchable_nowhere(experiment) for row in rows for experiment in row["experiments"]):
        raise typer.Exit(REFUSED)


def _verdict_lines(row: Mapping[str, Any]) -> list[str]:
    """Say of a valid file where it can be launched, followed by the obstacles of what can be launched nowhere."""
    from orchestrator.cli.render.words import counted
    from orchestrator.launch.obstacles import Obstacle, ObstacleCode, verdict, verdict_lines

    if not row["ok"]:
        return []
    found: list[Mapping[str, Any]] = row["experiments"]
    against = [
        (
            experiment["name"],
            at["on"],
            tuple(Obstacle(ObstacleCode(one["code"]), one["text"]) for one in at["obstacles"]),
        )
        for experiment in found
        for at in experiment["targets"]
    ]
    if len(found) == 1:
        what = f"{row['name']}, {counted(row['peers'], 'peer')}"
        said = [verdict(on, obstacles) for _, on, obstacles in against]
    else:
        what = f"{len(found)} experiments: {', '.join(experiment['name'] for experiment in found)}"
        able = {at["on"]: 0 for at in found[0]["targets"]}
        for _, on, obstacles in against:
            able[on] += not obstacles
        said = [f"{count} of {len(found)} {verdict(on, ())}" for on, count in able.items()]
    lines = [f"{row['file']}: ok ({what}); {'; '.join(said)}"]
    nowhere = {experiment["name"] for experiment in found if _launchable_nowhere(experiment)}
    same: dict[tuple[str, tuple[Obstacle, ...]], list[str]] = {}
    for name, on, obstacles in against:
        if name in nowhere:
            same.setdefault((on, obstacles), []).append(name)
    for (on, obstacles), names in same.items():
        told = verdict_lines(", ".join(names), on, obstacles)
        lines += told[len(against) == 1 :]  # the first line has its verdict already
    return lines


def _launchable_nowhere(experiment: Mapping[str, Any]) -> bool:
    return not any(at["launchable"] for at in experiment["targets"])


def _show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File, or name of a shipped experiment.")],
    overrides: _Overrides = None,
    matrix: MatrixOption = None,
    output: Annotated[_Document, typer.Option("-o", "--output", help="yaml or json.")] = _Document.yaml,
) -> None:
    """Print an experiment with all defaults filled in.

    For a file with a matrix, the list of its experiments is printed.

    JSON: the keys of the experiment file, described by `orch schema`. For several experiments
    {"schema_version": 1, "experiments": [{"name", "model", "peers", "description"}]}
    """
    try:
        specs = load_all(file, overrides or (), matrix or ())
    except SpecError as error:
        raise _refused(error) from error
    if len(specs) > 1:
        rows = [
            {"name": s.name, "model": s.trains, "peers": s.peer_count, "description": s.description}
            for s in specs
        ]
        form = Format.json if output is _Document.json else Format.table
        typer.echo(rows_text("experiments", rows, tuple(rows[0]), form), nl=False)
        return
    document = to_document(specs[0])
    if output is _Document.json:
        typer.echo(as_json(document), nl=False)
    else:
        typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110), nl=False)


def _schema() -> None:
    """Print the JSON Schema of experiment files, for editors.

    Editors with the YAML language server find it through the first line of the file:
    # yaml-language-server: $schema=schema.json
    """
    typer.echo(as_json(json_schema()), nl=False)


def _experiments(
    output: Annotated[
        Format, typer.Option("-o", "--output", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """List the experiments shipped with orch.

    `orch show NAME` prints one.

    JSON: {"schema_version": 1, "experiments": [{"name", "model", "peers", "description", "path"}]}
    """
    try:
        entries = library()
    except SpecError as error:
        raise _refused(error) from error
    columns = ("name", "model", "peers", "description")
    typer.echo(rows_text("experiments", [asdict(entry) for entry in entries], columns, output), nl=False)


def _checked(
    file: str, overrides: Sequence[str], matrix: Sequence[str], targets: Sequence[Where]
) -> dict[str, Any]:
    problems: tuple[Problem, ...] = ()
    specs: list[ExperimentSpec] = []
    try:
        specs = load_all(file, overrides, matrix)
    except SpecError as error:
        problems = error.problems
    found = [
        {"name": spec.name, "peers": spec.peer_count, "targets": [_target(spec, on.value) for on in targets]}
        for spec in specs
    ]
    name, peers = (specs[0].name, specs[0].peer_count) if len(specs) == 1 else (None, None)
    return {
        "file": file,
        "ok": bool(found),
        "name": name,
        "peers": peers,
        "problems": problems,
        "experiments": found,
    }


def _target(spec: ExperimentSpec, on: str) -> dict[str, Any]:
    """Whether the experiment can be launched there, as `orch plan` decides it."""
    from orchestrator.cli.starting import plan_for

    document = plan_for(spec, on, build=False).document
    return {"on": on, "launchable": document["launchable"], "obstacles": document["obstacles"]}


def _refused(error: SpecError) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(2)
