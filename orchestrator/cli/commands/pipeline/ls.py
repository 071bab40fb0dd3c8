"""`orch pipeline ls`: the built-in pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.render.output import Format, rows_text

_COLUMNS = ("name", "dataset", "needs")


def ls(
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """List the built-in input pipelines.

    `dataset` is the data set that is made for a pipeline when it is used without an experiment (`orch pipeline show
    imagenet`). The others need an experiment with their settings.

    JSON: {"schema_version": 1, "pipelines": [{"name", "dataset" or null, "needs": "nothing" or "an experiment"}]}.
    """
    from experiments.pipeline.load import BUILT_IN
    from orchestrator.pipeline.target import STANDALONE

    rows = [
        {
            "name": name,
            "dataset": STANDALONE[name].dataset if name in STANDALONE else None,
            "needs": "nothing" if name in STANDALONE else "an experiment",
        }
        for name in BUILT_IN
    ]
    typer.echo(rows_text("pipelines", rows, _COLUMNS, output), nl=False)
