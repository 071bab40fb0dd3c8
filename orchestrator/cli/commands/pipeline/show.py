"""`orch pipeline show`: the operations of an input pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.pipeline.arguments import OutputOption, SetOption
from orchestrator.cli.render.input_pipeline import operations_text
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import say
from orchestrator.errors import UsageError

_MOST_SAMPLES = 100_000


def show(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="Experiment (file or name), or a built-in pipeline (`orch pipeline ls`).",
        ),
    ],
    overrides: SetOption = None,
    samples: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Samples for the mean bytes after each operation; 0: nothing is read and no store is started.",
        ),
    ] = 16,
    output: OutputOption = "table",
) -> None:
    """Show the operations of an input pipeline, in order, and the bytes of a sample after each.

    Samples come from the experiment's store. If it names none, or for a pipeline alone, they are generated and stored
    in an embedded store for the time of the command. Only operations before the first random one can be stored. The
    fingerprint changes with everything that determines the values after the operation.

    Exit: 0 shown, 1 an operation or a sample is wrong, 2 no such experiment or pipeline, or its store cannot be read.

    \b
    JSON: {"schema_version", "target", "kind": "pipeline"|"experiment", "pipeline", "generated": true|false|null (not
      read), "samples", "bad_samples", "mean_bytes_stored", "storable_ops", "operations": [{"number", "name", "field",
      "into" (field of the result), "takes", "gives", "random", "storable", "not_storable": null or {"code":
      "random"|"behind_random", "op"}, "call", "parameters": {name: value}, "files": {name: SHA-256}, "libraries":
      {name: version}, "fingerprint", "codecs", "mean_bytes_out"}]}; "mean_bytes_out": of the whole sample in memory;
      unknown is null
    """

    if not 0 <= samples <= _MOST_SAMPLES:
        raise UsageError(f"--samples {samples}: use a whole number from 0 to {_MOST_SAMPLES}")
    document = _described(target, overrides or (), samples)
    if output == "json":
        typer.echo(as_json(document), nl=False)
    else:
        typer.echo(operations_text(document), nl=False)


def _described(name: str, overrides: Sequence[str], samples: int) -> dict[str, Any]:
    from orchestrator.pipeline.described import first_samples, measured, operations, stored_bytes
    from orchestrator.pipeline.failures import input_errors
    from orchestrator.pipeline.opened import declared_pipeline, open_input
    from orchestrator.pipeline.target import find_target

    target = find_target(name, overrides)
    head = {
        "schema_version": SCHEMA_VERSION,
        "target": target.name,
        "kind": "pipeline" if target.spec is None else "experiment",
    }
    if samples == 0:
        with input_errors(), declared_pipeline(target) as (pipeline, own_paths), input_errors(own_paths):
            rows = operations(pipeline)
        facts = {
            "pipeline": pipeline.name,
            "generated": None,
            "samples": 0,
            "bad_samples": 0,
            "mean_bytes_stored": None,
        }
    else:
        with (
            input_errors(),
            open_input(target, samples=samples, progress=say) as found,
            input_errors(found.own_paths),
        ):
            read = first_samples(found, samples)
            sizes, bad = measured(found, read)
            rows = operations(found.pipeline, sizes)
            facts = {
                "pipeline": found.pipeline.name,
                "generated": found.generated,
                "samples": len(read) - bad,
                "bad_samples": bad,
                "mean_bytes_stored": stored_bytes(read),
            }
    return {**head, **facts, "storable_ops": sum(row["storable"] for row in rows), "operations": rows}
