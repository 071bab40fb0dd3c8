"""`orch stop`, `down`, `reap`: end runs and prove that nothing is left. Ending is never asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands.launch import ResultForm, Where
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import confirm, say

if TYPE_CHECKING:
    from orchestrator.controller.reaping import Reaped


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

    Another orch that is bringing it up gives up first, and a run.db that cannot be read keeps no VM.

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
            metavar="NAME",
            help="Whose: the label orch-owner of the VMs; looks at the clouds. [ORCH_OWNER, else this home's own]",
            show_default=False,
        ),
    ] = "",
    output: Annotated[ResultForm, typer.Option("--output", "-o", help="text or json.")] = ResultForm.text,
) -> None:
    """Take down what runs without a living controller left behind.

    A run that is being started, or whose killed controller Ray starts again, is left alone.
    On rented VMs, whatever carries our label orch-owner is compared with the runs of this machine: SkyPilot's
    clusters, and on AWS the account's VMs, volumes and addresses. The clouds are asked for every name under which
    anything was ever rented from here, also where a run's folder or its run.db is gone. Nothing without the label
    is touched, and without --all nothing of a run that this machine does not know: that is printed, and ends with 5
    where the label's name is this home's own. From another machine, with the clouds'
    credentials only: orch reap --all --on sky --owner NAME. Where it was looked, and where not, is printed.

    Exit 0: nothing is left where it was looked, by two listings. Exit 2: wrong option, or nobody knows whose VMs.
    Exit 3: --all without an answer. Exit 5: what is left is printed, `RUN<tab>WHAT`, on stdout; or, with --all, no
    cloud itself could be asked, so that something may be left.

    \b
    JSON: {"schema_version", "owners": [], "left": [{"run", "what"}], "looked_at": [], "not_looked_at":
      [{"cloud", "why"}], "others": [{"run", "what"}] (of runs not known here, left alone), "unreadable":
      [{"run", "why"}]}; the clouds' are empty when nothing was ever rented from here
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
    reaped = client.reap(home_folder(), everything, on.value if on else "", owner)
    rows = _rows(reaped.left)
    if output is ResultForm.json:
        typer.echo(as_json(_reap_document(reaped, rows)), nl=False)
    else:
        for row in rows:
            typer.echo(f"{row['run']}\t{row['what']}")
    missed = _missed(reaped)
    for run, why in reaped.unreadable.items():
        say(f"{run}: {why}; what is left of it was looked for all the same, what it cost is not known")
    for row in _rows(reaped.others):
        say(f"left alone, of {row['run']}, which is not known here: {row['what']}; `orch reap --all` ends it")
    if rows:
        runs = ", ".join(dict.fromkeys(row["run"] for row in rows))
        raise TeardownError(
            f"{runs}: something is still there (listed on stdout); `orch reap` tries again, and `orch reap --all` ends "
            f"what is of runs not known here too{missed}",
            [row["what"] for row in rows],
        )
    if reaped.reach is None:
        say("nothing is left")
        return
    whose = f"owner {', '.join(reaped.owners)}"
    if everything and not reaped.reach.asks_a_cloud:
        raise TeardownError(
            f"something of {whose} may be left: no cloud itself could be asked{missed}; look for the label orch-owner in "
            "their consoles, or try again with AWS's credentials"
        )
    of = whose if everything else f"{whose} and of the runs of this home without a controller"
    say(f"nothing of {of} is left in {', '.join(reaped.reach.looked_at)}{missed}")


def _rows(found: Mapping[str, list[str]]) -> list[dict[str, str]]:
    return [{"run": run, "what": name} for run, names in found.items() for name in names]


def _missed(reaped: Reaped) -> str:
    """Which clouds were not looked at, and why, to stand at a sentence's end."""
    missed = reaped.reach.not_looked_at.items() if reaped.reach else ()
    text = ", ".join(f"{cloud} ({why})" for cloud, why in missed)
    return f"; not looked at: {text}" if text else ""


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
