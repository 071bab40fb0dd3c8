"""Terminal capabilities and prompts. Questions are only asked on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

import typer

from cloud.vm_report import printable
from orchestrator.errors import RefusedError


def is_interactive() -> bool:
    """Whether the user can be asked: stdin and stderr are terminals, and this is not a CI job."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr) and not _ci(os.environ)


def wants_live_view(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether stderr can be redrawn: a terminal that is not `dumb`, and not a CI job."""
    return _is_terminal(sys.stderr) and environment.get("TERM") != "dumb" and not _ci(environment)


def wants_colour(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to use colour: only on a terminal, and not if NO_COLOR is set (https://no-color.org)."""
    return wants_live_view(environment) and not environment.get("NO_COLOR")


def say(text: str) -> None:
    """Print a message for the user on stderr; stdout is reserved for results."""
    typer.echo("\n".join(printable(line, None) for line in text.split("\n")), err=True)


def confirm(question: str, *, yes: bool, refusal: str) -> None:
    """Ask for confirmation, unless `yes`.

    Raises RefusedError if the answer is not yes, at the end of input, and without asking if there is no
    terminal; `refusal` is then the message, which says how to proceed.
    """
    if yes:
        return
    if not is_interactive():
        raise RefusedError(refusal)
    # Not typer.confirm: that turns Ctrl-C and the end of input into the same exception.
    typer.echo(f"{question} [y, then Enter: yes; only Enter: no] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("declined: the answer was not yes; nothing was done")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: closed by the parent process


def _ci(environment: Mapping[str, str]) -> bool:
    return environment.get("CI", "").lower() not in ("", "0", "false", "no")
