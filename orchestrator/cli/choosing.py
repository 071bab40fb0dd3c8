"""Options that several commands share: the target, and the experiments of a file with a `matrix:`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Where(StrEnum):
    """Where VMs run: emulated on this machine, or rented through SkyPilot."""

    local = "local"
    sky = "sky"


MatrixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--matrix",
        metavar="KEY=VALUE|NAME",
        help="Select from a file with a matrix: by value (n=4) or by experiment name. Repeatable.",
    ),
]
