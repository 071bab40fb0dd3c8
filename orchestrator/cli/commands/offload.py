"""`orch offload`: the server that runs the first operations of a pipeline next to the storage."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.interrupts import ended_like_ctrl_c
from orchestrator.cli.render.terminal import say

_offload = typer.Typer(
    name="offload", no_args_is_help=True, help="Run the first operations of a pipeline next to the storage."
)
_POLL_S = 1.0
_GB = 1_000_000_000


@_offload.callback()
def _any_command(context: typer.Context) -> None:
    context.with_resource(ended_like_ctrl_c())


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    _offload.command("serve")(serve)
    app.add_typer(_offload)


def serve(
    pipeline: Annotated[
        str, typer.Option(metavar="NAME|FILE.py:NAME", help="Pipeline, as in an experiment's data.pipeline.")
    ],
    plan: Annotated[Path, typer.Option(metavar="FILE", help="Plan: operations and codec of each sample.")],
    shards: Annotated[
        str, typer.Option(metavar="PATTERN", help="Shards, such as s3://bucket/train-{000000..000031}.tar.")
    ],
    keys: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of certificate.pem, key.pem and tokens.json.")
    ],
    settings: Annotated[str, typer.Option(metavar="JSON", help="Settings of a built-in pipeline.")] = "{}",
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of the store, http(s)://host:port. [boto3's default]")
    ] = "",
    slot: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Make a token for this slot. Repeatable.")
    ] = None,
    cores: Annotated[int, typer.Option(help="Processes of one thread each.")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 0,
    memory_gb: Annotated[float, typer.Option(help="Memory of each process.")] = 2.0,
    sample_s: Annotated[float, typer.Option(help="Time for the operations of a sample.")] = 5.0,
) -> None:
    """Serve transformed shards over HTTPS until Ctrl-C.

    Of each sample in the plan the first operations run here, with the random numbers of the pass that
    the peer asks for; their values replace the member that they were made of, as image.op2.webp. All
    other samples are sent as they are stored. A sample whose operations fail here, take longer than
    --sample-s or more memory than --memory-gb is sent as it is stored, too, with a line on stderr.

    Peers need the certificate and the token of their slot from the folder --keys. With --slot both are
    made there, and removed at the end; that needs the package cryptography. tokens.json is
    {"SLOT": "TOKEN"}. Credentials of the store are boto3's.

    Exit: 1 the pipeline cannot be loaded, 2 invalid command, plan, keys, address or shards, 130 Ctrl-C.

    \b
    JSON, printed once the server is ready: {"schema_version", "host", "port", "fingerprint", "plan", "keys"};
      fingerprint is the pipeline's, and plan the SHA-256 of the plan.
    """
    from cloud.storage.client import ClientPerProcess
    from cloud.storage.errors import BadUrlError
    from cloud.storage.opener import RetryPolicy, ShardOpener
    from experiments.offload.certificate import server_context
    from experiments.offload.cores import Cores
    from experiments.offload.errors import PlanError
    from experiments.offload.job import Job
    from experiments.offload.keys import Keys
    from experiments.offload.plan import OffloadPlan
    from experiments.offload.server import OffloadServer
    from experiments.schema.shards import ShardPatternError, shard_urls
    from orchestrator.cli.render.output import SCHEMA_VERSION, as_json

    for option, value in (("--memory-gb", memory_gb), ("--sample-s", sample_s)):
        if not 0 < value < float("inf"):
            raise typer.BadParameter(f"{option} {value} is not a number above 0")
    try:
        found_plan = OffloadPlan.from_json(plan.read_text(encoding="utf-8"), str(plan))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--plan {plan} cannot be read ({error})") from error
    try:
        urls = frozenset(shard_urls(shards))
    except ShardPatternError as error:
        raise BadUrlError(str(error)) from error
    with Keys(keys, tuple(slot or ())) as held:
        job = Job(pipeline, found_plan, urls, held.tokens, _parsed(settings), Path.cwd())
        found = job.work.pipeline()
        opener = ShardOpener(
            ClientPerProcess(endpoint, read_timeout_s=10.0, connections=100),
            endpoint=endpoint,
            retry=RetryPolicy(deadline_s=10.0),
        )
        workers = Cores(job, cores, limit_s=sample_s, memory_bytes=int(memory_gb * _GB), report=say)
        try:
            tls = server_context(*held.paths)
            try:
                server = OffloadServer(job, workers, opener, tls, host=host, port=port, report=say)
            except OSError as error:
                raise PlanError(
                    f"{host}:{port} cannot be listened on ({error}); choose another --port"
                ) from error
            try:
                facts = {
                    "schema_version": SCHEMA_VERSION,
                    "host": host,
                    "port": server.port,
                    "fingerprint": found.fingerprint(),
                    "plan": found_plan.sha256,
                    "keys": keys,
                }
                typer.echo(as_json(facts), nl=False)
                while True:
                    time.sleep(_POLL_S)
            finally:
                server.stop()
        finally:
            workers.close()


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--settings '{text[:80]}' is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"--settings '{text[:80]}' is not a JSON object")
    return found
