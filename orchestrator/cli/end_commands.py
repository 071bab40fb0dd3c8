"""`orch stop`, `down`, `reap`: end runs and prove that nothing is left. Ending is never asked about."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.launch_commands import Where
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.terminal import confirm, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("stop")(_stop)
    app.command("down")(_down)
    app.command("reap")(_reap)


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="For scripts; this command never asks.")]


def _stop(run: RunArgument, yes: YesOption = False) -> None:
    """End a run politely: peers leave the swarm, logs are collected, what was measured is kept.

    Prints the run's final status. Exit 0 once the run has ended, 5 when it has not.
    """
    from orchestrator.controller import client

    found = find_run(run)
    typer.echo(client.stop(found.run_id, found.home))
    say(f"`orch report {found.run_id}` shows what was measured")


def _down(run: RunArgument, yes: YesOption = False) -> None:
    """Take a run down now and prove that nothing is left of it.

    Exit 0: nothing is left. Exit 5: what is left is printed, one a line, on stdout.
    """
    from orchestrator.controller import client
    from orchestrator.errors import TeardownError

    found = find_run(run)
    left = client.down(found.run_id, found.home)
    for name in left:
        typer.echo(name)
    if left:
        raise TeardownError(
            f"{found.run_id}: {len(left)} things are still there (listed on stdout); "
            f"`orch down {found.run_id}` tries again",
            left,
        )
    say(f"{found.run_id}: nothing is left")


def _reap(
    everything: Annotated[
        bool, typer.Option("--all", help="Also runs that are alive: take all down.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before taking live runs down.")
    ] = False,
    on: Annotated[
        Where | None,
        typer.Option(
            "--on", help="sky: look at the clouds though no run of this machine is there; local: do not."
        ),
    ] = None,
    owner: Annotated[
        str,
        typer.Option(
            envvar="ORCH_OWNER",
            help="Whose: the label orch-owner of the VMs. [this machine's, in <home>/owner]",
        ),
    ] = "",
) -> None:
    """Take down what runs without a living controller left behind.

    On rented VMs, whatever carries our label orch-owner is compared with the runs of this machine: SkyPilot's
    clusters, and on AWS the account's VMs, volumes and addresses. Nothing without the label is touched, and
    without --all nothing of a run that this machine does not know. From another machine, with the clouds'
    credentials only: orch reap --all --on sky --owner NAME.

    Exit 0: nothing is left, by two listings. Exit 5: what is left is printed, `RUN<tab>WHAT`, on stdout.
    """
    from orchestrator.controller import client
    from orchestrator.errors import TeardownError
    from orchestrator.home import home_folder

    on = Where.sky if owner and on is None else on
    if everything:
        confirm(
            "Take down every run, those that are training included?",
            yes=yes,
            refusal="`orch reap --all` takes live runs down: there is no terminal to ask on, so add --yes",
        )
    left = {
        run: names
        for run, names in client.reap(home_folder(), everything, on.value if on else "", owner).items()
        if names
    }
    for run, names in left.items():
        for name in names:
            typer.echo(f"{run}\t{name}")
    if left:
        raise TeardownError(
            f"{', '.join(left)}: something is still there (listed on stdout); `orch reap` tries again",
            [name for names in left.values() for name in names],
        )
    say("nothing is left")
