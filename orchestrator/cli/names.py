"""Resolve run names given on the command line, and complete them in the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer


class Found(NamedTuple):
    """An existing run."""

    run_id: str
    home: Path
    folder: Path


def find_run(text: str) -> Found:
    """Find the run with the id `text`, with a unique id prefix `text`, or the `latest`. Raises UsageError."""
    from orchestrator.home import home_folder, resolve_run, run_folder

    home = home_folder()
    run_id = resolve_run(home, text)
    return Found(run_id, home, run_folder(home, run_id))


def find_source(text: str) -> Path:
    """Return `text` if it is a folder (of a run, logs or exports), else the folder of that run. Raises UsageError."""
    from orchestrator.errors import UsageError

    place = Path(text).expanduser()
    if place.is_dir():
        return place
    if place.is_file():
        raise UsageError(f"{text} is a file; give the folder that contains it")
    if "/" in text:
        raise UsageError(f"{text}: no such folder")
    try:
        return find_run(text).folder
    except UsageError as error:
        raise UsageError(f"{error}; there is no folder {text!r} here either") from error


def _complete(incomplete: str) -> list[str]:
    from orchestrator.home import home_folder, list_runs

    return [run for run in list_runs(home_folder()) if run.startswith(incomplete)]


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run id, a unique prefix of one, or `latest`.", autocompletion=_complete
    ),
]
