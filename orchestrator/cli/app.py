"""The console script `orch`: every command's entry, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.exits import DONE, INTERRUPTED, verdict

# Command: its module, and what the list of commands says of it. Only the module of the command that was
# typed is imported (`orch --help` imports none), so that no command pays for the imports of another.
# tests/orchestrator/cli/test_app.py compares this table with the modules.
COMMANDS: dict[str, tuple[str, str]] = {
    "plan": (
        "plan",
        "Show what an experiment would rent, where and at what price, from files only; or save it to launch.",
    ),
    "check": (
        "check",
        "Check whether a run can start from here: packages, clouds, ports, memory; each line says what to do.",
    ),
    "launch": ("launch", "Run an experiment: show the plan, ask, start it, watch it, report."),
    "attach": (
        "launch",
        "Watch a run again; one whose controller died gets a new one and goes on.",
    ),
    "ls": ("look", "List the runs, the newest first."),
    "status": (
        "look",
        "Show how a run is: peers by place, epoch, throughput, granularity, dollars, last events.",
    ),
    "logs": ("look", "Print a log: of the controller, or of a slot's VMs, the oldest VM first."),
    "why": ("look", "Tell a slot's story from the journal: every change with its cause."),
    "cost": (
        "cost",
        "What runs cost, by kind and by link, an hour and per 1M samples: measured, and as the study counts.",
    ),
    "report": ("report", "Build the run's report and print its path, or print its numbers as JSON."),
    "replay": (
        "replay",
        "Compute the numbers of anyone's logs: W&B exports of the study, exported runs, or runs of this machine.",
    ),
    "audit": ("audit", "Find what is doubtful in a run's or a study's numbers, with the evidence."),
    "export": (
        "export",
        "Write a run as files: all records as Parquet or CSV, or the costs as FOCUS 1.2 rows; print the folder.",
    ),
    "bill": (
        "export",
        "Lay the run's estimate beside a provider's bill: dollars by service, and the differences.",
    ),
    "study": ("study", "Run a study of several experiments, or draw several runs on one page."),
    "compare": (
        "compare",
        "Lay runs, or a study's runs, beside the published figures: published, replayed, emulated.",
    ),
    "stop": (
        "end",
        "End a run politely: peers leave the swarm, logs are collected, what was measured is kept.",
    ),
    "down": ("end", "Take a run down now and prove that nothing is left of it."),
    "reap": ("end", "Take down what runs without a living controller left behind."),
    "validate": (
        "spec",
        "Check experiment files, offline and without credentials; exit 2 if one is wrong.",
    ),
    "show": ("spec", "Print the resolved document, defaults included."),
    "schema": ("spec", "Print the JSON Schema of experiment files, for editors."),
    "experiments": (
        "spec",
        "List the experiments that ship with orch; `orch show NAME` prints one.",
    ),
    "prices": (
        "prices",
        "Print a price book: every price with its date and source, or where two books differ.",
    ),
    "simulate": (
        "simulate",
        "Simulate a run: days in a second, with preemptions, full zones, failing calls and a controller that is killed.",
    ),
    "data": ("data", "Make data sets as shards; serve them from this machine."),
    "net": ("net", "The emulated network."),
}

# typer carries its own copy of click from some version on: reach click's base class through typer.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main() -> int:
    """Run the command line of this process; the value is the exit code."""
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Run one command. Errors become one sentence on stderr and the exit code of docs/command-line.md."""
    try:
        command: Any = typer.main.get_command(build_app(arguments))
        result = command.main(args=list(arguments), prog_name="orch", standalone_mode=False)
    except _ClickException as error:
        error.show()
        return int(error.exit_code)
    except typer.Abort:
        return INTERRUPTED
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit) or os.environ.get("ORCH_DEBUG") == "1":
            raise
        code, sentence, located = verdict(error)
        typer.echo(("" if located else "orch: ") + (sentence or _unexpected(error)), err=True)
        return code
    return result if isinstance(result, int) else DONE


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the module of the command that `arguments` name and placeholders for the rest.

    While the shell asks for completions every module is there.
    """
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
    app.callback()(_options)
    typed = next((word for word in arguments if not word.startswith("-")), "")
    needed = {COMMANDS[typed][0]} if typed in COMMANDS else set[str]()
    if "_ORCH_COMPLETE" in os.environ:
        needed = {module for module, _ in COMMANDS.values()}
    registered: set[str] = set()
    for name, (module, summary) in COMMANDS.items():
        if module not in needed:
            app.command(name, help=summary)(_placeholder)
        elif module not in registered:
            registered.add(module)
            register: Callable[[typer.Typer], None] = import_module(
                f"orchestrator.cli.commands.{module}"
            ).register
            register(app)
    return app


def _placeholder() -> None:
    """Stands in the list of commands for one that was not typed."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"orch {version('orch')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


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
