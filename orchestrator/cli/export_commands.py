"""`orch export`: a run as files; `orch bill`: the run's estimate beside a provider's bill."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.names import find_run

__all__ = ["ExportForm", "register"]


class ExportForm(StrEnum):
    """What `orch export` writes."""

    parquet = "parquet"
    csv = "csv"
    focus = "focus"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("export")(_export)


_Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, the beginning of it, `latest`, or a run's folder.")
]


def _export(
    run: _Run,
    to: Annotated[
        ExportForm, typer.Option("--to", help="parquet or csv: all records. focus: the costs, as FOCUS 1.2.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to make; default ./<run id>-<form>.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there.")] = False,
    known_only: Annotated[
        bool, typer.Option("--known-only", help="focus: leave out what has no known cost, and name it.")
    ] = False,
) -> None:
    """Write a run as files: all records as Parquet or CSV, or the costs as FOCUS 1.2 rows; print the folder.

    `orch replay FOLDER` reads a parquet or csv export back without loss. A run that is still going on is
    written as it is at this moment. Keys and logs are never written.

    FOCUS is the cost format that clouds export their bills in. Each row is an estimate and says so; a cost
    that is not known ends with exit 2, unless --known-only. docs/export.md has the columns.
    """
    from analysis.export.focus_file import export_focus
    from analysis.export.tables import export_tables

    folder = _folder(run)
    chosen = out or Path(f"{folder.name}-{to}")
    if to is ExportForm.focus:
        left_out = export_focus(folder / "run.db", chosen, force, known_only)["left_out"]
        for line in left_out:
            typer.echo(f"left out, its cost is unknown: {line}", err=True)
    else:
        export_tables(folder / "run.db", chosen, to.value, force)
    typer.echo(str(chosen))


def _folder(run: str) -> Path:
    """The run's folder: what was typed where that is one, else the run of that id."""
    typed = Path(run)
    return typed.absolute() if (typed / "run.db").is_file() else find_run(run).folder
