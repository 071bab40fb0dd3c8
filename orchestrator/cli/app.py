"""The console script `orch`: every command's entry, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import (
    data_commands,
    end_commands,
    launch_commands,
    look_commands,
    net_commands,
    report_commands,
    spec_commands,
)
from orchestrator.cli.exits import DONE, INTERRUPTED, verdict

__all__ = ["app", "main", "run"]

# Plain help: rich's costs 70 ms of the 300 that `orch --help` may take, and pipes badly.
app = typer.Typer(
    name="orch",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Train one model on interruptible VMs across clouds and continents, and know what it costs.",
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong command or YAML, 3 stopped or refused, 4 no capacity, "
        "5 something may still be running, 6 another controller holds the run, 7 stale plan, "
        "130 interrupted. ORCH_HOME: where runs are kept. ORCH_DEBUG=1: show tracebacks."
    ),
)
for _room in (
    launch_commands,
    look_commands,
    report_commands,
    end_commands,
    spec_commands,
    data_commands,
    net_commands,
):
    _room.register(app)

# typer carries its own copy of click from some version on: reach click's base class through typer.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"orch {version('orch')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> int:
    """Run the command line of this process; the value is the exit code."""
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Run one command. Errors become one sentence on stderr and the exit code of docs/command-line.md."""
    command: Any = typer.main.get_command(app)
    try:
        result = command.main(args=list(arguments), prog_name="orch", standalone_mode=False)
    except _ClickException as error:
        error.show()
        return int(error.exit_code)
    except typer.Abort:
        return INTERRUPTED
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit) or os.environ.get("ORCH_DEBUG") == "1":
            raise
        code, sentence = verdict(error)
        typer.echo(f"orch: {sentence or _unexpected(error)}", err=True)
        return code
    return result if isinstance(result, int) else DONE


def _unexpected(error: BaseException) -> str:
    """Keep the traceback in a file, since the user gets one sentence."""
    import tempfile
    import traceback

    from orchestrator.home import home_folder

    text = "".join(traceback.format_exception(error))
    folder = home_folder() / "faults"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir())
    try:
        handle, name = tempfile.mkstemp(prefix="orch-fault-", suffix=".txt", dir=folder)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        where = f"the traceback is in {name}"
    except OSError as unwritable:
        where = f"its traceback could not be written ({unwritable}): repeat with ORCH_DEBUG=1"
    return f"a fault of orch itself, {type(error).__name__}: {str(error) or 'no message'}; {where}"
