"""`orch stop`, `down` and `reap`: end runs and verify that nothing is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.choosing import Where
from orchestrator.cli.commands.launch import ResultForm
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import confirm, say
from orchestrator.cli.render.words import counted

if TYPE_CHECKING:
    from orchestrator.controller.reaping import Reaped


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("stop")(_stop)
    app.command("down")(_down)
    app.command("reap")(_reap)


YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Accepted for scripts; this command never asks.")
]


def _stop(run: RunArgument, yes: YesOption = False) -> None:
    """Stop a run gracefully and keep its measurements.

    Peers leave the swarm and logs are collected. Prints the final status of the run. Exit: 0 the run has ended,
    5 it has not.
    """
    from orchestrator.controller import client

    found = find_run(run)
    typer.echo(client.stop(found.run_id, found.home))
    say(f"`orch report {found.run_id}` shows the measurements")


def _down(run: RunArgument, yes: YesOption = False) -> None:
    """Tear a run down and verify that nothing is left.

    Ends the run immediately. Another `orch` process that is still starting the run is made to give up first.
    VMs are also found and terminated if the run's run.db cannot be read.

    Exit: 0 nothing is left, 5 something is left; it is listed on stdout, one item per line.
    """
    from orchestrator.controller import client
    from orchestrator.errors import TeardownError

    found = find_run(run)
    left = client.down(found.run_id, found.home)
    for name in left:
        typer.echo(name)
    if left:
        raise TeardownError(
            f"{found.run_id}: not torn down completely, {counted(len(left), 'resource')} left (listed on stdout); "
            f"run `orch down {found.run_id}` to retry",
            left,
        )
    say(f"{found.run_id}: torn down, nothing is left")


def _reap(
    everything: Annotated[
        bool, typer.Option("--all", help="Tear down all runs, including live ones.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before tearing down live runs.")
    ] = False,
    on: Annotated[
        Where | None,
        typer.Option(
            "--on", help="sky: search the clouds even if this machine has no run there; local: do not."
        ),
    ] = None,
    owner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Owner whose VMs to search for (their label orch-owner); implies --on sky. [$ORCH_OWNER, else this home's own]",
            show_default=False,
        ),
    ] = "",
    output: Annotated[ResultForm, typer.Option("--output", "-o", help="text or json.")] = ResultForm.text,
) -> None:
    """Tear down what is left of runs without a live controller.

    A run that is being started, or whose killed controller is being restarted by Ray, is left alone.
    In the clouds, all resources with the label orch-owner are compared with the runs of this machine: SkyPilot
    clusters and, on AWS, the account's VMs, volumes and addresses. The search covers every owner name that was ever
    used for renting from here, even if the run's folder or its run.db is gone. Resources without the label are
    never touched. Without --all, resources of runs unknown to this machine are not touched either; they are
    printed, and the exit code is 5 if the owner is this home's own. From another machine that has only the clouds'
    credentials, use: orch reap --all --on sky --owner NAME. The clouds searched and not searched are printed.

    Exit: 0 nothing is left in the clouds searched, confirmed by two listings; 2 invalid option, or no owner is
    known; 3 --all was not confirmed; 5 something is left, listed on stdout as `RUN<tab>WHAT`, or, with --all, no
    cloud could be queried directly, so that something may be left.

    \b
    JSON: {"schema_version", "owners": [], "left": [{"run", "what"}], "looked_at": [], "not_looked_at":
      [{"cloud", "why"}], "others": [{"run", "what"}] (of unknown runs, left alone), "unreadable":
      [{"run", "why"}]}; the fields about clouds are empty if nothing was ever rented from here
    """
    from orchestrator.controller import client
    from orchestrator.errors import TeardownError
    from orchestrator.home import home_folder

    on = Where.sky if owner and on is None else on
    if everything:
        confirm(
            "Tear down all runs, including those that are training?",
            yes=yes,
            refusal="`orch reap --all` tears down live runs and there is no terminal to ask for confirmation; add --yes",
        )
    reaped = client.reap(home_folder(), everything, on.value if on else "", owner)
    rows = _rows(reaped.left)
    if output is ResultForm.json:
        typer.echo(as_json(_reap_document(reaped, rows)), nl=False)
    else:
        for row in rows:
            typer.echo(f"{row['run']}\t{row['what']}")
    missed = _missed(reaped)
    for run, why in reaped.unreadable.items():
        say(f"{run}: {why}; its resources were searched for nevertheless, but its cost is unknown")
    for row in _rows(reaped.others):
        say(
            f"{row['what']}: left alone because run {row['run']} is unknown here; `orch reap --all` tears it down"
        )
    if rows:
        runs = ", ".join(dict.fromkeys(row["run"] for row in rows))
        raise TeardownError(
            f"{runs}: not torn down completely (see stdout for what is left); run `orch reap` to retry, or "
            f"`orch reap --all` to include runs unknown here{missed}",
            [row["what"] for row in rows],
        )
    if reaped.reach is None:
        say("nothing is left")
        return
    whose = f"owner {', '.join(reaped.owners)}"
    if everything and not reaped.reach.asks_a_cloud:
        raise TeardownError(
            f"resources of {whose} may be left: no cloud could be queried directly{missed}; look for the label "
            "orch-owner in the clouds' consoles, or retry with AWS credentials"
        )
    of = whose if everything else f"{whose} and of runs of this home without a controller"
    say(f"nothing of {of} is left in {', '.join(reaped.reach.looked_at)}{missed}")


def _rows(found: Mapping[str, list[str]]) -> list[dict[str, str]]:
    return [{"run": run, "what": name} for run, names in found.items() for name in names]


def _missed(reaped: Reaped) -> str:
    """Format the clouds that were not searched, with reasons, as the end of a sentence."""
    missed = reaped.reach.not_looked_at.items() if reaped.reach else ()
    text = ", ".join(f"{cloud} ({why})" for cloud, why in missed)
    return f"; not searched: {text}" if text else ""


def _reap_document(reaped: Reaped, rows: list[dict[str, str]]) -> dict[str, Any]:
    reach = reaped.reach
    missed = reach.not_looked_at.items() if reach else ()
    return {
        "schema_version": SCHEMA_VERSION,
        "owners": list(reaped.owners),
        "left": rows,
        "looked_at": list(reach.looked_at) if reach else [],
        "not_looked_at": [{"cloud": cloud, "why": why} for cloud, why in missed],
        "others": _rows(reaped.others),
        "unreadable": [{"run": run, "why": why} for run, why in reaped.unreadable.items()],
    }
