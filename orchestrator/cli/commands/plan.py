"""`orch plan`: what an experiment would rent, where and at what price."""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloud.targets import TARGETS
from orchestrator.cli.choosing import MatrixOption, Where
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.planning.preemptions import SpotHistories
    from experiments.schema.models import ExperimentSpec

_COLUMNS = (
    "slot",
    "choice",
    "location",
    "instance",
    "accelerator",
    "market",
    "usd_per_h",
    "ceiling_usd_per_h",
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan")(_plan)


def _plan(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="YAML file, or name of a shipped experiment (`orch experiments`)."
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a value, for example swarm.target_batch_size=8192. Repeatable.",
        ),
    ] = None,
    matrix: MatrixOption = None,
    on: Annotated[
        Where,
        typer.Option(
            "--on", help="local: the emulated cloud on this machine; sky: VMs rented through SkyPilot."
        ),
    ] = Where.local,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="table|json|FILE.json",
            help="Output format, or a .json file to save the plan to.",
        ),
    ] = "table",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="RUN|URL",
            help="Begin with a checkpoint, as `orch launch --from`: the plan is that of the epochs left.",
        ),
    ] = "",
    price_tolerance: Annotated[
        float,
        typer.Option(min=0, max=10, help="Accept VM prices up to this fraction above the plan (0.1 = 10 %)."),
    ] = 0.1,
    spot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PLACE=]FILE|NAME",
            help="History of spot capacity, as with `orch simulate --spot`: the prediction includes preemptions. Repeatable.",
        ),
    ] = None,
    restart_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86400,
            help="With --spot: seconds from the request of a VM until its peer trains. [390]",
        ),
    ] = None,
    accuracy: Annotated[
        bool,
        typer.Option(
            "--accuracy",
            help="Instead of a plan: how close the predictions of this machine's runs were to what was measured.",
        ),
    ] = False,
) -> None:
    """Show what an experiment would rent, where and at what price.

    The first line says whether it can be launched; every obstacle follows. Then come the slots (one VM each, a peer
    of the experiment) with their places in order of preference, each price with its source, the dollars an hour of
    VMs and traffic, the budget, and the predicted samples/s, granularity and dollars per 1M samples with their 90 %
    intervals (docs/prediction.md). With -o FILE.json the plan is saved, and `orch launch --plan FILE.json` launches
    exactly that plan.

    Works from files only, except with --from, which looks the checkpoint up in the store as the launch does: no network,
    no credentials; nothing is started. Prices for --on sky come from SkyPilot's
    catalogs if they are on this machine, else from price books: rows of your own (`--set prices=auto,mine.csv`,
    docs/prices.md), then the newest row of the shipped books. The source is shown with each price.

    With --accuracy and without FILE: the errors of all predictions that runs on this machine kept, by places, averaging
    method and model, and how many of the 90 % intervals held the measured value.

    With --spot the prediction includes preemptions: peers train where their first VM is requested, whenever the history
    of that place has room (docs/prediction.md). Without it, no preemptions are assumed.

    Exit: 0 it can be launched (also if this machine still lacks packages, credentials or values of secrets), 2
    invalid file or option, 3 it cannot be launched as it is.

    \b
    JSON: {"schema_version", "orch_version", "created_at", "launchable", "obstacles": [{"code", "text"}],
      "experiment", "model", "on", "emulated", "peers":
      [{"slot", "replace", "places": [{"location", "instance", "accelerator", "use_spot", "usd_per_h",
      "ceiling_usd_per_h", "price_source"}], and the keys of the first place}], "usd_per_h", "dearest_usd_per_h",
      "ceilings", "budget_usd", "duration_s", "vm_usd", "checkpoints": null or {"writer",
      "location", "bytes", "count", "usd", "restore_usd", "kept_usd"}, "prediction":
      {"sps": {"value", "low", "high"}, "granularity", "calc_s", "comm_s", "epoch_s", "egress_bytes_per_vm_epoch",
      "usd_per_h", "usd_per_1m_samples", "time_to_samples_s", "usd_to_samples" (all with 90 % intervals, null: unknown),
      "more_peers": null or {"peers", "factor" (the paper's rule), "by", "stops_at", "most", "predicted_factor",
      "predicted_usd_factor", "text"}, "preemptions": null or {"restart_s", "windows", "window_s", "run_s", "sps_share",
      "mean_sps_share", "billed_share", "histories": [{"place", "source", "sha256", "days", "availability"}]}, "samples",
      "egress": [{"src", "dst", "bytes_per_epoch", "usd_per_epoch"}],
      "bottleneck": {"kind", "where", "share"},
      "assumptions": [{"name", "value", "source", "share", "share_of"}], "unknown": [why]}, "notes", "experiment_document",
      "experiment_sha256", "plan_sha256", ...}; docs/plan.md describes all keys.
    With --accuracy: {"schema_version", "pairs": [{"run_id", "experiment", "origin", "places", "method", "model", "figure",
      "predicted", "low", "high", "measured", "error", "inside"}], "accuracy": [{"places", "method", "model", "origin",
      "figure", "n", "median" (of absolute errors), "worst", "bias", "inside" (runs)}], "unreadable": [{"run_id", "why"}]}
    """
    from experiments.parse.load import load
    from orchestrator.cli.exits import REFUSED
    from orchestrator.cli.render.summary import plan_lines, plan_table
    from orchestrator.cli.render.words import owner_words
    from orchestrator.cli.starting import plan_for, plan_from, plan_json, plan_verdict
    from orchestrator.home import home_folder, stored_owner

    if accuracy:
        if spot or restart_s is not None:
            raise typer.BadParameter("--accuracy takes neither --spot nor --restart-s")
        _show_accuracy(experiment, output)
        return
    if not experiment:
        raise typer.BadParameter(
            "an experiment is missing: FILE or NAME, or --accuracy", param_hint="FILE|NAME"
        )
    if output not in ("table", "json") and not output.endswith(".json"):
        raise typer.BadParameter(f"'{output[:80]}' is not table, json or the name of a .json file")
    spec = load(experiment, overrides or (), matrix or ())
    tolerance = Decimal(str(price_tolerance))
    histories = _histories(spec, spot or (), restart_s)
    plan = plan_for(spec, on.value, tolerance, spot=histories)
    if start and not plan.obstacles:
        plan = plan_from(plan, start, tolerance, spot=histories)
    if output == "json":
        typer.echo(plan_json(plan))
    elif output == "table":
        typer.echo("\n".join(plan_verdict(plan)) + "\n")
        typer.echo(plan_table(plan.document), nl=False)
        for line in plan_lines(plan.document):
            typer.echo(line)
    else:
        for line in (*plan_verdict(plan), *plan_lines(plan.document)):
            say(line)
        _save(Path(output), plan_json(plan))
        typer.echo(output)
        if plan.obstacles:
            say(f"{output} cannot be launched as it is: remove the obstacles above, then plan again")
        else:
            say(f"launch it with `orch launch --plan {output}`")
    if TARGETS[on].rents:
        say(owner_words(stored_owner(home_folder())))
    if plan.obstacles:
        raise typer.Exit(REFUSED)


def _histories(spec: ExperimentSpec, options: Sequence[str], restart_s: float | None) -> SpotHistories | None:
    """Read the histories of --spot, with notes on stderr. Raises UsageError."""
    from analysis.planning.preemptions import SpotHistories
    from orchestrator.cli.spot_option import histories_of
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder
    from orchestrator.simulation.policies import RESTART_S

    if not options:
        if restart_s is not None:
            raise UsageError("--restart-s: only with --spot; leave it out")
        return None
    found, notes = histories_of(spec, options, home_folder(), time.time())
    for note in notes:
        say(note)
    return SpotHistories(found, RESTART_S if restart_s is None else restart_s)


def _show_accuracy(experiment: str, output: str) -> None:
    """Print the errors of the predictions of all runs of this machine."""
    from analysis.compare.predicted import Pair, accuracy, accuracy_document, accuracy_table, pairs_of
    from metrics.run import RunNumbers
    from metrics.store.database import RunStore, StoreError
    from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
    from orchestrator.home import home_folder, list_runs, run_folder

    if experiment or output not in ("table", "json"):
        raise typer.BadParameter("--accuracy takes no FILE, and -o table or json")
    home, found, unreadable = home_folder(), list[Pair](), list[dict[str, str]]()
    for run_id in list_runs(home):
        try:
            with RunStore.open_reader(run_folder(home, run_id) / "run.db") as store:
                found += pairs_of(RunNumbers.of(store))
        except StoreError as error:
            unreadable.append({"run_id": run_id, "why": str(error)})
    if output == "json":
        typer.echo(
            as_json({"schema_version": SCHEMA_VERSION, **accuracy_document(found), "unreadable": unreadable})
        )
        return
    for row in unreadable:
        say(f"left out: {row['run_id']}: {row['why']}")
    if rows := accuracy_table(accuracy(found)):
        typer.echo(rows_text("accuracy", rows, list(rows[0]), Format.table), nl=False)
        typer.echo(
            "inside: runs whose 90 % interval holds the measured value; errors are predicted / measured - 1"
        )
    else:
        typer.echo("no run on this machine has both a prediction and a measurement; `orch launch` makes one")


def _save(path: Path, text: str) -> None:
    from orchestrator.errors import UsageError

    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot write the plan ({error.strerror}); choose another file") from error
