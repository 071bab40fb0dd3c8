"""What the terminal allows: asking, colour, a live view. Off a terminal nothing is ever asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

import typer

from cloud.vm_report import printable
from orchestrator.errors import RefusedError


def is_interactive() -> bool:
    """True when a person can be asked: input and messages are both a terminal, and this is no CI job."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr) and not _ci(os.environ)


def wants_live_view(environment: Mapping[str, str] = os.environ) -> bool:
    """True when stderr can redraw itself (a terminal that is not `dumb`, and no CI job)."""
    return _is_terminal(sys.stderr) and environment.get("TERM") != "dumb" and not _ci(environment)


def wants_colour(environment: Mapping[str, str] = os.environ) -> bool:
    """Colour on a terminal only, and never with NO_COLOR set to anything (https://no-color.org)."""
    return wants_live_view(environment) and not environment.get("NO_COLOR")


def say(text: str) -> None:
    """A message to the person: stderr, so that stdout stays data."""
    typer.echo("\n".join(printable(line, None) for line in text.split("\n")), err=True)


def confirm(question: str, *, yes: bool, refusal: str) -> None:
    """Go on only after a yes.

    Raises RefusedError on a no, on the end of input, and at once (without asking) where nobody can be
    asked and `yes` was not given; `refusal` is then the sentence, which names the way on.
    """
    if yes:
        return
    if not is_interactive():
        raise RefusedError(refusal)
    # Not typer.confirm: that turns Ctrl-C and the end of input into the same exception.
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("stopped: the answer was not yes; nothing was done")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: whoever started us had closed it


def _ci(environment: Mapping[str, str]) -> bool:
    return environment.get("CI", "").lower() not in ("", "0", "false", "no")
