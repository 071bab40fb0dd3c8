"""The console script `orch`: the list of commands, and the conversion of errors to exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.exits import DONE, INTERRUPTED, verdict

# Command name: its module and its summary in `orch --help`. Only the module of the invoked command is
# imported (`orch --help` imports none), so that no command pays for the imports of another.
# tests/orchestrator/cli/test_app.py compares this table with the modules.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("first_steps", "Write a new experiment into the current folder."),
    "try": (
        "first_steps",
        "Try an experiment in one process: read, train some steps, save.",
    ),
    "plan": (
        "plan",
        "Show what an experiment would rent, where and at what price.",
    ),
    "advise": (
        "advise",
        "Search places, numbers of peers and accelerators for a goal.",
    ),
    "check": (
        "check",
        "Check whether a run can start from this machine.",
    ),
    "launch": ("launch", "Run an experiment: plan, confirm, start, follow, report."),
    "attach": (
        "launch",
        "Follow a run; restart its controller if it died.",
    ),
    "ls": ("look", "List runs, newest first."),
    "status": (
        "look",
        "Show a run's peers, epoch, throughput, cost and events.",
    ),
    "logs": ("look", "Print the log of the controller or of a slot's VMs."),
    "why": ("look", "Show every state change of a slot, with its cause."),
    "cost": (
        "cost",
        "Show what runs cost, by kind and by link.",
    ),
    "report": ("report", "Build a run's HTML report, or print its numbers as JSON."),
    "replay": (
        "replay",
        "Compute the figures of existing logs or runs.",
    ),
    "audit": ("audit", "Find doubtful figures in runs, with the evidence."),
    "export": (
        "export",
        "Export a run's records, its costs as FOCUS 1.2 rows, or its settings and figures for an experiment tracker.",
    ),
    "bill": (
        "export",
        "Compare a run's estimated cost with the provider's bill.",
    ),
    "checkpoints": ("checkpoints", "List a run's checkpoints, newest first."),
    "pull": ("checkpoints", "Pull a checkpoint into a folder: resuming, verified, all or nothing."),
    "evaluate": ("checkpoints", "Evaluate a checkpoint on the experiment's held-out samples."),
    "study": ("study.group", "Run studies, or draw several runs on one page."),
    "compare": (
        "compare",
        "Compare runs with each other and with the published figures.",
    ),
    "stop": (
        "end",
        "Stop a run gracefully and keep its measurements.",
    ),
    "down": ("end", "Tear a run down and verify that nothing is left."),
    "reap": ("end", "Tear down what is left of runs without a live controller."),
    "validate": (
        "spec",
        "Validate experiment files.",
    ),
    "show": ("spec", "Print an experiment with all defaults filled in."),
    "schema": ("spec", "Print the JSON Schema of experiment files, for editors."),
    "experiments": (
        "spec",
        "List the experiments shipped with orch.",
    ),
    "prices": (
        "prices",
        "Print a price book, or compare two price books.",
    ),
    "simulate": (
        "simulate",
        "Simulate days of a run in a second, with faults.",
    ),
    "spot": ("spot", "Import spot histories, and show what they say."),
    "data": ("data.group", "Make, pack, check or serve data sets."),
    "pipeline": ("pipeline.group", "See where a run's input time and dollars go, and what would pay."),
    "offload": ("offload", "Run the first operations of a pipeline next to the storage."),
    "net": ("net", "Measure the emulated network."),
}

# typer carries its own copy of click from some version on: reach click's base class through typer.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main() -> int:
    """Run the command line of this process and return its exit code."""
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Run one command. Errors are printed as one sentence on stderr; docs/command-line.md lists the exit codes."""
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
    """Build the application, with the module of the invoked command and placeholders for the others.

    For shell completion all modules are imported.
    """
    # Plain help: rich's takes 70 of the 300 ms budgeted for `orch --help`, and does not pipe well.
    app = typer.Typer(
        name="orch",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Train a model on spot VMs across clouds and continents, and measure what it costs.",
        epilog=(
            "Exit codes: 0 success, 1 failure, 2 invalid command or YAML, 3 stopped or declined, 4 no capacity, "
            "5 something may still be running, 6 the run is held by another controller, 7 stale plan, "
            "130 interrupted. ORCH_HOME: folder where runs are kept. ORCH_DEBUG=1: show tracebacks."
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
    """Placeholder in the list of commands for a command that was not invoked."""


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"orch {version('orch')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


def _unexpected(error: BaseException) -> str:
    """Write the traceback to a file and return the sentence for the user."""
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
        where = f"the traceback could not be written ({unwritable}); rerun with ORCH_DEBUG=1 to see it"
    return f"internal error: {type(error).__name__}: {str(error) or 'no message'}; {where}"
