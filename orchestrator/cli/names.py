"""From what the user typed to a run of the state folder, and the completion of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer


class Found(NamedTuple):
    """A run that exists."""

    run_id: str
    home: Path
    folder: Path


def find_run(text: str) -> Found:
    """The run `text` means: its id, the beginning of it, or `latest`. Raises UsageError."""
    from orchestrator.home import home_folder, resolve_run, run_folder

    home = home_folder()
    run_id = resolve_run(home, text)
    return Found(run_id, home, run_folder(home, run_id))


def find_source(text: str) -> Path:
    """A folder that is there (of a run, of logs, of exports), else a run's folder. Raises UsageError."""
    from orchestrator.errors import UsageError

    place = Path(text).expanduser()
    if place.is_dir():
        return place
    if place.is_file():
        raise UsageError(f"{text}: is a file; name the folder that it lies in")
    if "/" in text:
        raise UsageError(f"{text}: there is no such folder")
    return find_run(text).folder


def _complete(incomplete: str) -> list[str]:
    from orchestrator.home import home_folder, list_runs

    return [run for run in list_runs(home_folder()) if run.startswith(incomplete)]


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, the beginning of it, or `latest`.", autocompletion=_complete
    ),
]
