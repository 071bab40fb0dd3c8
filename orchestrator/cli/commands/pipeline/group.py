"""`orch pipeline`: look at input pipelines, trace them, measure strategies and compare what they cost."""

from __future__ import annotations

import typer

from orchestrator.cli.commands.pipeline.ls import ls
from orchestrator.cli.commands.pipeline.map import map_pipeline
from orchestrator.cli.commands.pipeline.plan import plan
from orchestrator.cli.commands.pipeline.profile import profile
from orchestrator.cli.commands.pipeline.report import report
from orchestrator.cli.commands.pipeline.show import show
from orchestrator.cli.commands.pipeline.trace import trace
from orchestrator.cli.interrupts import ended_like_ctrl_c

_pipeline = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    help="See where a run's input time and dollars go, and what would pay.",
)


@_pipeline.callback()
def _any_command(context: typer.Context) -> None:
    context.with_resource(ended_like_ctrl_c())


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    _pipeline.command("ls")(ls)
    _pipeline.command("show")(show)
    _pipeline.command("trace")(trace)
    _pipeline.command("map")(map_pipeline)
    _pipeline.command("profile")(profile)
    _pipeline.command("plan")(plan)
    _pipeline.command("report")(report)
    app.add_typer(_pipeline)
