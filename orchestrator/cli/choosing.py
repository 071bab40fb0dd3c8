"""The option that selects experiments of a file with a `matrix:`."""

from __future__ import annotations

from typing import Annotated

import typer

MatrixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--matrix",
        metavar="KEY=VALUE|NAME",
        help="Select from a file with a matrix: by value (n=4) or by experiment name. Repeatable.",
    ),
]
