"""How a command says which experiment of a file with a `matrix:` is meant."""

from __future__ import annotations

from typing import Annotated

import typer

MatrixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--matrix",
        metavar="KEY=VALUE|NAME",
        help="Of a file with a matrix: the experiment where n=4, or the one of this name. Repeatable.",
    ),
]
