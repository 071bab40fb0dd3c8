"""Arguments that the pipeline commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

_MOST_PASSES = 1_000_000

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the experiment. Repeatable."),
]
OutputOption = Annotated[
    Literal["table", "json"], typer.Option("--output", "-o", help="table or json.", show_choices=True)
]


def parsed_passes(text: str) -> list[int]:
    """Parse "1,30"; each number once, in its order. Raises typer.BadParameter."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= _MOST_PASSES for part in parts):
        raise typer.BadParameter(
            f"--passes '{text[:80]}' is not a list of whole numbers from 1 to {_MOST_PASSES:,}, such as 1,30"
        )
    return list(dict.fromkeys(map(int, parts)))
