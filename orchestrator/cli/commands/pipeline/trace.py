"""`orch pipeline trace`: where an input's time goes, measured here or recorded by a run."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.commands.pipeline.arguments import OutputOption, SetOption
from orchestrator.cli.render.input_pipeline import trace_text
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.progress import ProgressLine
from orchestrator.cli.render.terminal import say
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from analysis.pipeline.records import Trace
    from cloud.storage.link import Link
    from orchestrator.pipeline.target import Target

_BATCHES = 16
_MOST_GENERATED, _LEAST_GENERATED = 512, 64  # samples
_SIZED = 16  # samples whose stored size is read


def trace(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Built-in pipeline (`orch pipeline ls`), experiment (file or name), or a run: its id, a prefix, or latest.",
        ),
    ],
    overrides: SetOption = None,
    batches: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Batches that are counted. [{_BATCHES}]", show_default=False),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="1,2,4", help="Numbers of workers to compare. [the experiment's, or 1]"),
    ] = None,
    kind: Annotated[
        Literal["thread", "process"] | None,
        typer.Option(help="What workers are. [the experiment's, or thread]"),
    ] = None,
    streams: Annotated[
        int | None, typer.Option(metavar="N", help="Shards that are read at once. [the experiment's, or 1]")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="Mb/s,ms", help="Read the store as over this path: rate of a stream, round trip."
        ),
    ] = None,
    in_order: Annotated[
        bool | None,
        typer.Option(
            "--in-order/--no-in-order", help="Whether samples keep their order. [the experiment's, or yes]"
        ),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trace for https://ui.perfetto.dev.")
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the records: ops, batches, phases and threads .parquet."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for trace.json. Default: traces/<target>-<time> in ORCH_HOME, none for a run.",
        ),
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Measure where the time of an input goes, by operation and by batch, and what would help.

    An experiment or a pipeline is read as a peer reads it, by a consumer that does nothing: this is what the input can
    deliver on this machine. Samples of one without a store are generated. Of a run, the trace is shown that its peers
    recorded with `data.trace`; there the consumer is the training. The terms are explained in docs/pipeline.md.

    Exit: 0 measured, 1 an operation, a sample or a trace file is wrong, 2 invalid option, no such target, or a run
    without a trace.

    \b
    JSON: {"schema_version", "target", "kind": "pipeline"|"experiment"|"run", "pipeline", "fingerprint", "machine",
      "measured_at", "vms": [name] of a run, "generated": true|false, "shards",
      "endpoint", "link": null or {"rate_mbps", "rtt_ms"}, "batch_size", "warm_up_batches",
      "mean_bytes_stored", "traces": [{"workers", "worker_kind", "in_order", "streams", "bad_samples",
      "samples_per_s", "samples_per_s_interval": [low, high] (95 %), "busy_share" (of the workers' time: in
      operations), "cpu_s", "dropped", "ops": [{"name", "n", "mean_ms", "p90_ms", "share_below_10ms",
      "share_below_100us", "cpu_s", "mean_bytes_out"}], "collate": null or one like those, "batches": {"n",
      "mean_ms", "sd_percent", "iqr_ms", "outliers", "wait_s", "delay_s", "wait_share" (of the time), "share_wait_over_500ms",
      "share_delay_over_500ms", "out_of_order"}}], "advice": [{"code": "head_of_line"|"knee"|"shuffle_after",
      "of_workers", "evidence", "sentence"}]}; unknown, and what a run's trace does not hold, is null. trace.json contains the same.
    """
    from orchestrator.pipeline.failures import input_errors
    from orchestrator.pipeline.target import Target
    from orchestrator.pipeline.trace_options import (
        check_batches,
        check_file,
        check_folder,
        check_streams,
        parsed_link,
        worker_counts,
    )
    from orchestrator.pipeline.traced_target import find_traced

    counts = None if workers is None else worker_counts(workers)
    path = None if link is None else parsed_link(link)
    if batches is not None:
        check_batches(batches)
    if streams is not None:
        check_streams(streams)
    found = find_traced(target, overrides or ())
    if not isinstance(found, Target):
        _refuse_for_runs(
            found.name,
            {
                "--set": overrides or None,
                "--batches": batches,
                "--workers": workers,
                "--kind": kind,
                "--streams": streams,
                "--link": link,
                "--in-order": in_order,
            },
        )
    if perfetto is not None:
        check_file("--perfetto", perfetto)
    if parquet is not None:
        check_folder("--parquet", parquet)
    if out is not None:
        check_folder("--out", out)
    here = Path.cwd()  # a task's code may change it
    with input_errors():
        if isinstance(found, Target):
            document, recorded = _measured(found, batches or _BATCHES, counts, kind, streams, path, in_order)
        else:
            document, recorded = _of_run(found)
    _write(recorded, perfetto, parquet)
    typer.echo(as_json(document) if output == "json" else trace_text(document), nl=False)
    if isinstance(found, Target) or out is not None:
        _save(document, here / (out or _folder(document["target"])))


def _refuse_for_runs(run_id: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if value is not None:
            raise UsageError(
                f"{option}: {run_id} is a run, whose trace has been recorded; leave the option out, or name an experiment"
            )


def _measured(
    target: Target,
    batches: int,
    counts: Sequence[int] | None,
    kind: Literal["thread", "process"] | None,
    streams: int | None,
    link: Link | None,
    in_order: bool | None,
) -> tuple[dict[str, Any], Trace]:
    from analysis.pipeline.window import together
    from experiments.peer.training.decoding import Workers
    from orchestrator.pipeline.described import first_samples, stored_bytes
    from orchestrator.pipeline.failures import input_errors
    from orchestrator.pipeline.opened import BATCH_SAMPLES, open_input
    from orchestrator.pipeline.trace_document import advice_of_recorded, recorded_document
    from orchestrator.pipeline.tracing import WARM_UP, record

    batch_size = BATCH_SAMPLES if target.spec is None else target.spec.swarm.batch_size
    samples = min(_MOST_GENERATED, max(_LEAST_GENERATED, (WARM_UP + batches) * batch_size))
    declared = None if target.spec is None else target.spec.data
    if counts is None:
        counts = (1 if declared is None else declared.workers.count,)
    if kind is None:
        kind = "thread" if declared is None else declared.workers.kind
    if in_order is None:
        in_order = True if declared is None else declared.workers.in_order
    if streams is None:
        streams = 1 if declared is None else declared.streams
    with open_input(target, samples=samples, link=link, progress=say) as found, input_errors(found.own_paths):
        stored = stored_bytes(first_samples(found, _SIZED))
        line = ProgressLine()
        try:
            recorded = [
                record(found, Workers(kind, count, in_order), streams, batches, line.show) for count in counts
            ]
        finally:
            line.clear()
        document = {
            "schema_version": SCHEMA_VERSION,
            "target": found.name,
            "kind": "pipeline" if target.spec is None else "experiment",
            "pipeline": found.pipeline.name,
            "fingerprint": found.pipeline.fingerprint(),
            "machine": platform.node(),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "vms": None,
            "generated": found.generated,
            "shards": len(found.shards),
            "endpoint": found.endpoint,
            "link": None if link is None else {"rate_mbps": link.rate_mbps, "rtt_ms": link.rtt_ms},
            "batch_size": found.batch_size,
            "warm_up_batches": WARM_UP,
            "mean_bytes_stored": stored,
            "traces": [recorded_document(one) for one in recorded],
            "advice": advice_of_recorded(recorded, stored),
        }
    return document, together(one.trace for one in recorded)


def _of_run(folder: Path) -> tuple[dict[str, Any], Trace]:
    from orchestrator.pipeline.trace_document import advice_of_run, run_document, run_trace

    found = run_trace(folder)
    unknown = (
        "pipeline",
        "fingerprint",
        "machine",
        "measured_at",
        "generated",
        "endpoint",
        "link",
        "batch_size",
        "warm_up_batches",
        "mean_bytes_stored",
    )
    document = {
        "schema_version": SCHEMA_VERSION,
        "target": folder.name,
        "kind": "run",
        "vms": sorted({thread.vm for thread in found.threads}),
        **dict.fromkeys(unknown),
        "traces": [run_document(found)],
        "advice": advice_of_run(found),
    }
    return document, found


def _write(recorded: Trace, perfetto: Path | None, parquet: Path | None) -> None:
    from analysis.pipeline.chrome_trace import chrome_trace
    from analysis.pipeline.tables import write_parquet
    from cloud.durable_file import write_durably
    from orchestrator.pipeline.trace_options import writing

    if perfetto is not None:
        with writing("--perfetto", perfetto):
            write_durably(perfetto, json.dumps(chrome_trace(recorded)).encode(), 0o644)
        say(f"wrote {perfetto}; open it in https://ui.perfetto.dev")
    if parquet is not None:
        with writing("--parquet", parquet):
            written = write_parquet(recorded, parquet)
        say(f"wrote {', '.join(map(str, written))}")


def _folder(target: str) -> Path:
    from orchestrator.home import home_folder
    from orchestrator.pipeline.find_measured import TRACES

    return home_folder() / TRACES.folder / f"{target}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _save(document: Mapping[str, Any], folder: Path) -> None:
    from cloud.durable_file import write_durably
    from orchestrator.pipeline.find_measured import TRACES
    from orchestrator.pipeline.trace_options import writing

    with writing("--out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / TRACES.file, as_json(document).encode(), 0o644)
    say(f"saved as {folder / TRACES.file}")
