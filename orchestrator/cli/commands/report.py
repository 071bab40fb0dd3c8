"""`orch report`: build a run's report or print its numbers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import as_json


class ReportForm(StrEnum):
    """Output of `orch report`."""

    html = "html"
    json = "json"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("report")(_report)


def _report(
    run: RunArgument,
    output: Annotated[ReportForm, typer.Option("--output", "-o", help="html or json.")] = ReportForm.html,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Build a run's HTML report, or print its numbers as JSON.

    Prints the path of the report. Also works while the run is in progress, with the data recorded so far.

    \b
    JSON: {"schema_version", "run_id", "experiment", "target", "status", "emulated",
      "scales": {"bytes", "time", "samples"}, "host_contended", "host": {...} or null, "target_batch_size",
      "peers": [{"slot", "location", "vms", "preemptions"}], "epochs": {"warmup", "measured"},
      "sps": {"value", "low", "high", "n"}, "granularity": {same}, "granularity_of_means": {same},
      "granularity_stall_free": {same, of (calc_s - load_s) / comm_s} or null: load seconds unknown,
      "granularity_epochs": {"least", "median", "most", "n"} or null, "more_peers": {"peers", "factor" (of samples/s with
        twice the peers, by the paper's rule), "by": "prediction"|"rule"|"unknown", "stops_at" (peers, where a doubling
        gives less than 10 %), "most", "predicted_factor", "predicted_usd_factor", "text"} or null, "calc_s": {same},
      "comm_s": {same}, "overlapped_s": {same} or null, "epoch_s": {same}, "dropped_rounds",
      "egress": [{"src", "dst", "class", "bytes", "usd"}], "ingress_bytes",
      "cost": {"vm_usd", "egress_usd", "data_usd", "total_usd"}, "usd_per_1m_samples",
      "loss": {"first", "last"}, "accuracy", "evaluation": {name: value} (the last on held-out data) or null,
      "evaluation_best": {name: {"value", "epoch"} or null}, "evaluations": [{"epoch", "at_s", "peers",
        "samples", "raw_trained_samples", "figures": {name: value}}], "heldout_given",
      "bad_samples": {"training", "heldout", "first", "vms": [{"vm", "slot", "training", "heldout",
        "first"}]} or null,
      "coverage": {"shards", "passes": [{"pass", "samples" (null: unknown), "counted", "once", "more", "never",
        "unknown", "unsized_shards"}], "left_out_passes", "open_vms", "incomplete_vms", "silent_vms",
        "handovers": [{"slot", "vm", "replaced_by", "repeated_samples", "repeated_shards",
        "skipped_samples"}]} or null: unknown,
      "input" (sums of the trace, as measured): {"ops": [{"op", "n", "wall_s", "cpu_s", "bytes_out"}],
        "epochs": [{"epoch" (null: outside all), "batches", "samples", "fetch_s", "collate_s", "wait_s",
        "delay_s", "stall_s", "out_of_order", "complete"}], "vms": [{"vm", "slot", same as in epochs,
        "files", "damaged", "dropped" (events)}]} or null without data.trace,
      "published": {...} or null, "warnings": [], "raw": {...}}
    Times, bytes and dollars are at full scale; "raw" has them as measured.
    """
    found = find_run(run)
    if output is ReportForm.json:
        typer.echo(as_json(summary_of(found.folder)), nl=False)
        return
    page = build_report(found.folder)
    typer.echo(str(page))
    if show:
        typer.launch(page.as_uri())


def summary_of(folder: Path) -> dict[str, Any]:
    """Compute the run's numbers, as printed by `orch report -o json`. Raises StoreError."""
    from metrics.store.database import RunStore
    from metrics.summary import summarise

    with RunStore.open_reader(folder / "run.db") as store:
        return summarise(store)


def build_report(folder: Path) -> Path:
    """Build `report/report.html` in a run folder and return its path. Raises StoreError."""
    from analysis.report.build import build

    return build(folder)
