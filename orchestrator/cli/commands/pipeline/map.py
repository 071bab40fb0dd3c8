"""`orch pipeline map`: in which native functions each operation of a pipeline spends its time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.render.output import Format, as_json, rows_text

if TYPE_CHECKING:
    from analysis.pipeline.map_records import PipelineMap

_SAMPLED_SAMPLES = 64
_EXACT_SAMPLES = 8
_FEWEST_SHARE = 0.01  # of an operation, for a function to be in the table
_MOST_FUNCTIONS = 6  # of an operation in the table
_OP_COLUMNS = ("op", "calls", "count", "share_percent", "wall_ms", "first_library")
_FUNCTION_COLUMNS = ("op", "function", "library", "count", "share_percent", "low_percent", "high_percent")


def map_pipeline(
    target: Annotated[str, typer.Argument(help="An experiment (FILE or NAME), or a built-in pipeline.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the experiment."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Samples to run. Default: {_SAMPLED_SAMPLES}; with --exact {_EXACT_SAMPLES}."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to run them.")] = 10.0,
    frequency: Annotated[int, typer.Option(help="Profiler samples per second.")] = 1000,
    events: Annotated[
        str,
        typer.Option(metavar="E,E", help="Events of perf to count too: cycles,instructions,cache-misses."),
    ] = "",
    exact: Annotated[
        bool, typer.Option("--exact", help="Count instructions with callgrind instead of sampling.")
    ] = False,
    lotus: Annotated[
        bool, typer.Option("--lotus", help="Compare with LotusMap's method, which runs each operation alone.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="OLD.json", help="Fail if an operation executes more instructions than in this map."
        ),
    ] = None,
    limit: Annotated[float, typer.Option(min=0, help="With --check: percent more that are accepted.")] = 2.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for map.json. Default: maps/<target>-<time> in ORCH_HOME.")
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Map a pipeline's operations to native functions.

    The operations run in one thread on samples in memory, while perf samples the process; each sample belongs to the
    operation that ran at its time. Needs perf; with --exact, valgrind.

    JSON: {"schema_version": 1, "target", "pipeline", "fingerprint", "data_sha256", "unit": "samples" or "instructions",
    "samples", "frequency_hz", "seconds", "machine", "measured_at", "ops": [{"op", "calls", "count", "share", "wall_ns",
    "events": {name: count or null}}], "functions": [{"op", "function", "library", "count", "share", "low", "high"}],
    "between", "other_threads", "unknown_events": {name: reason}, "lotus": null or {"confidence", "error", "unmapped",
    "ops": [{"op", "runs", "function_ns", "interval_ns", "functions", "attributed"}]}}. A function's share is that of its
    operation. map.json contains the same.
    """
    from cloud.durable_file import write_durably
    from experiments.pipeline.errors import PipelineError
    from experiments.tasks.errors import TaskError
    from orchestrator.errors import RunFailedError, UsageError
    from orchestrator.home import home_folder
    from orchestrator.pipeline.map_programs import MapError, check_frequency, program
    from orchestrator.pipeline.mapping import (
        check_before,
        map_by_instructions,
        map_by_samples,
        map_document,
        read_samples,
        regressions,
    )
    from orchestrator.pipeline.opened import open_input
    from orchestrator.pipeline.target import find_target
    from orchestrator.pipeline.trace_options import check_folder

    if exact and (lotus or events):
        raise UsageError(
            "--exact counts instructions; leave out --lotus and --events, which belong to sampling"
        )
    if check is not None and not exact:
        raise UsageError("--check compares counted instructions; add --exact")
    before = None if check is None else _document(check)
    if before is not None:
        check_before(before, str(check))
    for name in ("valgrind", "vgdb") if exact else ("perf",):
        program(name)
    if not exact:
        check_frequency(frequency)
    found_target = find_target(target, tuple(set_ or ()))
    count = samples or (_EXACT_SAMPLES if exact else _SAMPLED_SAMPLES)
    here = Path.cwd()
    check_folder("--out", home_folder() / "maps" if out is None else here / out)
    try:
        with open_input(found_target, samples=count, progress=_say) as opened:
            read = read_samples(opened, count)
            if exact:
                found = map_by_instructions(opened, read, progress=_say)
            else:
                found = map_by_samples(
                    opened,
                    read,
                    seconds=seconds,
                    frequency_hz=frequency,
                    events=list(dict.fromkeys(filter(None, events.split(",")))),
                    lotus=lotus,
                    progress=_say,
                )
    except (PipelineError, TaskError) as error:
        raise MapError(str(error)) from error
    at = datetime.now(UTC)
    folder = home_folder() / "maps" / f"{found.target}-{at:%Y%m%d-%H%M%S}" if out is None else here / out
    document = map_document(found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / "map.json", as_json(document).encode(), 0o644)
    except OSError as error:
        raise UsageError(
            f"--out: {folder} cannot be written ({error.strerror or error}); choose another folder"
        ) from error
    if output in (Format.json, Format.yaml):
        rest = {key: value for key, value in document.items() if key not in ("schema_version", "functions")}
        typer.echo(rows_text("functions", document["functions"], (), output, rest), nl=False)
    elif output is Format.csv:
        typer.echo(rows_text("functions", _function_rows(found, 0.0), _FUNCTION_COLUMNS, output), nl=False)
    else:
        typer.echo("\n".join(_text(found)))
    _say(f"saved as {folder / 'map.json'}")
    if before is not None and (worse := regressions(before, found, limit, str(check))):
        raise RunFailedError(worse)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _document(path: Path) -> Mapping[str, Any]:
    from orchestrator.errors import UsageError

    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"--check: {path} cannot be read ({error.strerror}); give the map.json of a map"
        ) from error
    except ValueError as error:
        raise UsageError(f"--check: {path} is not JSON ({error}); give the map.json of a map") from error


def _text(found: PipelineMap) -> Iterator[str]:
    yield rows_text("ops", list(_op_rows(found)), _op_columns(found), Format.table)
    rows = _function_rows(found, _FEWEST_SHARE)
    listed = [
        row
        for op in dict.fromkeys(row["op"] for row in rows)
        for row in [row for row in rows if row["op"] == op][:_MOST_FUNCTIONS]
    ]
    columns = tuple(
        c for c in _FUNCTION_COLUMNS if found.unit == "samples" or not c.startswith(("low", "high"))
    )
    yield rows_text("functions", listed, columns, Format.table)
    yield (
        f"COUNT is in {found.unit}. A function's share is that of its operation; listed are at most {_MOST_FUNCTIONS} of "
        f"each, from {100 * _FEWEST_SHARE:g} %. All are in map.json."
    )
    if found.between is not None:
        total = sum(row.count for row in found.ops) + found.between
        yield f"{found.between} of {total} samples fell between operations."
    for event, reason in found.unknown_events.items():
        yield f"{event}: unknown ({reason})."
    if (lotus := found.lotus) is not None and lotus.error is not None and lotus.unmapped is not None:
        yield (
            f"LotusMap's method attributes {100 * lotus.error:.1f} % of the samples otherwise; it attributes "
            f"{100 * lotus.unmapped:.1f} % to no operation."
        )


def _op_columns(found: PipelineMap) -> tuple[str, ...]:
    events = tuple(dict.fromkeys(event for row in found.ops for event in row.events))
    lotus = () if found.lotus is None else ("lotus_count",)
    return (*(c for c in _OP_COLUMNS if c != "wall_ms" or found.unit == "samples"), *lotus, *events)


def _op_rows(found: PipelineMap) -> Iterator[dict[str, Any]]:
    lotus = {} if found.lotus is None else {row.op: row.attributed for row in found.lotus.ops}
    for row in found.ops:
        libraries: dict[str, int] = {}
        for function in found.functions:
            if function.op == row.op:
                libraries[function.library] = libraries.get(function.library, 0) + function.count
        yield {
            "op": row.op,
            "calls": row.calls,
            "count": row.count,
            "share_percent": 100 * row.share,
            "wall_ms": None if row.wall_ns is None else row.wall_ns / 1e6,
            "first_library": max(libraries, key=lambda name: libraries[name], default=None),
            "lotus_count": lotus.get(row.op),
            **row.events,
        }


def _function_rows(found: PipelineMap, fewest: float) -> list[dict[str, Any]]:
    return [
        {
            "op": row.op,
            "function": row.function,
            "library": row.library,
            "count": row.count,
            "share_percent": 100 * row.share,
            "low_percent": None if row.low is None else 100 * row.low,
            "high_percent": None if row.high is None else 100 * row.high,
        }
        for row in found.functions
        if row.share >= fewest
    ]
