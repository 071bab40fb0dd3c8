"""`orch data make` and `orch data serve`: generate training data, and serve it from a local S3 store."""

from __future__ import annotations

import signal
import time
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say


class _Dataset(StrEnum):
    digits = "digits"


class _Form(StrEnum):
    text = "text"
    json = "json"


_data = typer.Typer(
    name="data", no_args_is_help=True, help="Generate data sets as shards, or serve them locally."
)
_POLL_S = 1.0  # between two checks of the store's processes


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_data)


@_data.command("make")
def _make(
    dataset: Annotated[
        _Dataset, typer.Argument(help="digits: scikit-learn's handwritten digits, augmented.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="Destination: s3://bucket or s3://bucket/prefix. The bucket is created if needed."
        ),
    ],
    shards: Annotated[int, typer.Option(min=1, max=100_000, help="Number of training shards.")] = 32,
    samples_per_shard: Annotated[int, typer.Option(min=1, max=1_000_000, help="Samples per shard.")] = 512,
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of the store, http(s)://host:port. [boto3's default]")
    ] = "",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the augmentation; the same seed gives the same bytes.")
    ] = 0,
    form: Annotated[
        Format, typer.Option("-o", "--output", help="Output format.", show_choices=True)
    ] = Format.table,
) -> None:
    """Write a data set as WebDataset shards to an object store.

    Credentials come from boto3's usual chain (AWS_ACCESS_KEY_ID ..., a profile). Writes training
    shards and one held-out shard; no training sample is derived from a held-out original.

    JSON: {"schema_version": 1, "splits": [{"split": "train"|"heldout", "shards": pattern for an
    experiment's data, "samples": n, "count": shards}]}; table and CSV have the same columns.
    """
    import tempfile

    from cloud.storage.client import make_client
    from cloud.storage.digits import make_digits
    from cloud.storage.url import S3Url

    place = S3Url.parse(to)
    client = make_client(endpoint)
    say(f"generating {shards} shards of {samples_per_shard} {dataset.value} for {to}")
    with tempfile.TemporaryDirectory(prefix="orch-data-") as folder:
        made = make_digits(
            shards,
            to,
            client,
            folder=Path(folder),
            samples_per_shard=samples_per_shard,
            seed=seed,
            endpoint=endpoint,
        )
    say(f"{made.size_bytes} bytes written")
    rows = [
        {"split": split, "shards": str(place.join(_pattern(names))), "samples": samples, "count": len(names)}
        for split, names, samples in (
            ("train", made.train, made.train_samples),
            ("heldout", made.heldout, made.heldout_samples),
        )
    ]
    typer.echo(rows_text("splits", rows, ("split", "shards", "samples", "count"), form), nl=False)


@_data.command("serve")
def _serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 9000,
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the data. [`store` in orch's state folder]")
    ] = None,
    form: Annotated[
        _Form, typer.Option("-o", "--output", help="Output format.", show_choices=True)
    ] = _Form.text,
) -> None:
    """Run the embedded S3 store (OpenStack Swift) in the foreground until Ctrl-C.

    The first use installs it into its own virtual environment. The secret key is written to a
    file that only you can read; it is never printed.

    JSON, printed once the store is ready: {"schema_version": 1, "endpoint", "access_key", "region",
    "environment_file": AWS_* variables to source in a shell, "folder"}.
    """
    from cloud.storage.swift import SwiftServer
    from cloud.storage.swift_config import REGION, write_private
    from cloud.storage.swift_environment import state_folder

    # SIGTERM is handled like Ctrl-C: the store's processes are stopped first.
    signal.signal(signal.SIGTERM, _interrupt)
    with SwiftServer(folder or state_folder() / "store", bind, port) as server:
        variables = {**server.credentials.environment(), "AWS_ENDPOINT_URL": server.endpoint}
        environment_file = server.folder / "environment.sh"
        write_private(
            environment_file, "".join(f"export {key}={value}\n" for key, value in variables.items())
        )
        facts = {
            "schema_version": SCHEMA_VERSION,
            "endpoint": server.endpoint,
            "access_key": server.credentials.access_key,
            "region": REGION,
            "environment_file": environment_file,
            "folder": server.folder,
        }
        typer.echo(as_json(facts) if form is _Form.json else _instructions(facts), nl=False)
        while True:
            time.sleep(_POLL_S)
            for name in server.supervise():
                say(f"the store's {name} server died and was restarted")


def _instructions(facts: dict[str, object]) -> str:
    return (
        f"endpoint    {facts['endpoint']}\n"
        f"access key  {facts['access_key']}\n"
        f"secret key  in {facts['environment_file']}; in another shell run\n"
        f"            . {facts['environment_file']}\n"
        f"            orch data make digits --to s3://digits\n"
        f"folder      {facts['folder']}\n"
        "Press Ctrl-C to stop the store; the data is kept.\n"
    )


def _pattern(names: tuple[str, ...]) -> str:
    """Return the brace pattern of shard names that differ only in their number: `train-{000000..000031}.tar`."""
    first, last = names[0], names[-1]
    if first == last:
        return first
    stem, _, low = first.removesuffix(".tar").rpartition("-")
    high = last.removesuffix(".tar").rpartition("-")[2]
    return f"{stem}-{{{low}..{high}}}.tar"


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
