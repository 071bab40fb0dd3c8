"""`orch study`: run a study, list studies, draw several runs on one page next to the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.commands.study.run import run_study
from orchestrator.cli.names import find_source
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

_study = typer.Typer(name="study", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_study)


_study.command("run")(run_study)


@_study.callback()
def _group() -> None:
    """Run studies, or draw several runs on one page."""


@_study.command("report")
def _report(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|RUN...", help="Folders of logs or of exported runs; runs on this machine."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="HTML page to write; its figures are written to NAME_files/ next to it."
        ),
    ] = Path("report.html"),
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Draw the paper's own comparisons, on its basis and on one clock."),
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option(help="CSV with the run, role, host, place, model and GPU of each file."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN_ID", help="Only this run. Repeatable.")
    ] = None,
    prices: Annotated[
        str, typer.Option(help="Price book for imported runs and figures from print: a name or a CSV file.")
    ] = "study-2023-04",
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Draw runs side by side: cost against throughput, scaling, phases, dollars by kind, egress, places.

    Prints the path of the page. The page works offline; each figure is also written as CSV, PNG
    and SVG. With --paper the comparisons are those of the paper, computed from its logs if they
    are given and otherwise from its printed figures; each point is marked accordingly. Unknown
    values are listed with the reason and not drawn. Items that cannot be read are reported on
    stderr. Exits with 2 if nothing could be read.
    """
    from analysis.report.study.build import build, load
    from cloud.prices.book import load as load_book
    from orchestrator.errors import UsageError

    if output.is_dir() or not output.resolve().parent.is_dir():
        raise UsageError(f"{output}: not a file in an existing folder; use for example -o report.html")
    book = load_book(prices)
    places = [find_source(text) for text in targets]
    say(f"reading {', '.join(str(place) for place in places)}")
    runs, problems = load(places, book, index=index, only=only or (), paper=paper)
    for problem in problems:
        say(f"problem: {problem}")
    if not runs:
        raise UsageError(f"{', '.join(targets)}: no run could be computed; see the problems above")
    say(f"drawing {len(runs)} run{'s' if len(runs) != 1 else ''}")
    page = build(runs, output, book, paper=paper, problems=problems)
    typer.echo(str(page))
    if show:
        typer.launch(page.resolve().as_uri())


@_study.command("ls")
def _ls(
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """List the studies run here, newest first, and the studies shipped with orch.

    JSON: {"schema_version", "studies": [{"study", "on", "done", "failed", "left", "of"}], "shipped": []}
    """
    from experiments.study_file.load import studies
    from orchestrator.home import home_folder
    from orchestrator.study.definition import list_studies, read_state, read_study

    rows: list[dict[str, object]] = []
    for folder in list_studies(home_folder()):
        study = read_study(folder)
        state = read_state(folder, study)
        failed, left = len(state.failed), len(state.unsettled)
        done = len(state.jobs) - failed - left
        rows.append(
            {
                "study": study.study_id,
                "on": study.on,
                "done": done,
                "failed": failed,
                "left": left,
                "of": len(state.jobs),
            }
        )
    if output is Format.json:
        document = {"schema_version": SCHEMA_VERSION, "studies": rows, "shipped": studies()}
        typer.echo(as_json(document), nl=False)
        return
    typer.echo(rows_text("studies", rows, ("study", "on", "done", "failed", "left", "of"), output), nl=False)
    say(f"shipped with orch: {', '.join(studies())} (run one with `orch study run NAME`)")
