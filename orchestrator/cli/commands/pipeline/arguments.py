"""Arguments that the pipeline commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the experiment. Repeatable."),
]
OutputOption = Annotated[
    Literal["table", "json"], typer.Option("--output", "-o", help="table or json.", show_choices=True)
]
