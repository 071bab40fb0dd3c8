"""`orch validate`, `show`, `schema` and `experiments`: offline commands for experiment files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from experiments.parse import Problem, SpecError, json_schema, library, load_all, to_document
from orchestrator.cli.choosing import MatrixOption
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
    output: Annotated[_Report, typer.Option("-o", "--output", help="text or json.")] = _Report.text,
) -> None:
    """Validate experiment files.

    Works offline and without credentials. All experiments of a file with a matrix are validated. Exit: 0 all
    files are valid, 2 a file is invalid.

    JSON: {"schema_version": 1, "files": [{"file", "ok", "name", "peers", "problems": [{"file", "line",
    "column", "path", "message"}], "experiments": [{"name", "peers"}]}]}; name and peers are null if a file
    has several experiments
    """
    from orchestrator.cli.render.words import counted

    rows = [_checked(file, overrides or (), matrix or ()) for file in files]
    if output is _Report.json:
        listed = [{**row, "problems": [asdict(p) for p in row["problems"]]} for row in rows]
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, "files": listed}), nl=False)
    else:
        for row in rows:
            for problem in row["problems"]:
                typer.echo(str(problem), err=True)
            if row["name"] is not None:
                typer.echo(f"{row['file']}: ok ({row['name']}, {counted(row['peers'], 'peer')})")
            elif row["ok"]:
                names = ", ".join(each["name"] for each in row["experiments"])
                typer.echo(f"{row['file']}: ok ({len(row['experiments'])} experiments: {names})")
    if not all(row["ok"] for row in rows):
        raise typer.Exit(2)


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
            {"name": s.name, "model": s.model, "peers": s.peer_count, "description": s.description}
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


def _checked(file: str, overrides: Sequence[str], matrix: Sequence[str]) -> dict[str, Any]:
    problems: tuple[Problem, ...] = ()
    found: list[dict[str, Any]] = []
    try:
        found = [{"name": s.name, "peers": s.peer_count} for s in load_all(file, overrides, matrix)]
    except SpecError as error:
        problems = error.problems
    only = found[0] if len(found) == 1 else {"name": None, "peers": None}
    return {"file": file, "ok": bool(found), **only, "problems": problems, "experiments": found}


def _refused(error: SpecError) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(2)
