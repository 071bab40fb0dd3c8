"""`orch data`: make, pack and check data sets, and serve them from a local S3 store."""

from __future__ import annotations

import signal
import time
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.commands.data.check import check
from orchestrator.cli.commands.data.make import make
from orchestrator.cli.commands.data.pack import pack
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import say


class _Form(StrEnum):
    text = "text"
    json = "json"


_data = typer.Typer(name="data", no_args_is_help=True, help="Make, pack, check or serve data sets.")
_POLL_S = 1.0  # between two checks of the store's processes


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    _data.command("make")(make)
    _data.command("pack")(pack)
    _data.command("check")(check)
    app.add_typer(_data)


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


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
