"""The store's node: the embedded Swift, kept alive, with its data set; or a way to the user's own endpoint."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloud.local.host import programs
from cloud.local.host.guardian import write_json
from cloud.local.network import kernel
from cloud.local.options import StoreOptions
from cloud.provider import InvalidRequestError, TransientError

STORE_FILE = "store.json"
_LOOK_S = 0.5


def start(
    options: StoreOptions, cloud_folder: Path, ip: str, ns_fd: int | None, temp: Path, close: Sequence[int]
) -> int:
    """Fork the process that is, or keeps, the store; its pid. Raises InvalidRequestError for a URL it cannot reach."""
    folder = cloud_folder / "store"
    folder.mkdir(exist_ok=True)
    status = folder / STORE_FILE
    if options.kind == "forward":
        target = forward_target(options.url)
        arguments: tuple[object, ...] = (ns_fd, ip, options.port, target, status)
        program, enter = "cloud.local.host.store:serve_forward", None
    else:
        data = Path(options.folder) if options.folder else cloud_folder / "swift"
        program, arguments, enter = "cloud.local.host.store:serve_swift", (options, data, ip, status), ns_fd
    return programs.start(
        program, arguments, ns_fd=enter, folder=folder, temp=temp, environment={}, close=close
    )[0]


def serve_swift(options: StoreOptions, folder: Path, ip: str, status: Path) -> None:
    """Run Swift in this (the store's) namespace until killed; its servers are started again when they die.

    `status` (0600: it holds the store's keys) says {"state": "starting|filling|ready|failed", "endpoint",
    "access_key", "secret_key", "dataset", "restarts", "error"}.
    """
    from cloud.storage.swift import SwiftServer

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the servers die with this process
    status.touch(mode=0o600)
    said: dict[str, Any] = {"state": "starting", "restarts": 0, "error": ""}

    def say(**more: Any) -> None:
        said.update(more)
        write_json(status, said)
        status.chmod(0o600)

    say()
    server = SwiftServer(folder, ip, options.port, environment=Path(options.swift_environment))
    try:
        server.start()
        server.wait_ready(60)
        keys = {"access_key": server.credentials.access_key, "secret_key": server.credentials.secret_key}
        say(endpoint=server.endpoint, **keys, state="filling" if options.dataset else "ready")
        filler = None
        if options.dataset:
            arguments = {**options.dataset_arguments, "endpoint": server.endpoint, **keys}
            filler = multiprocessing.get_context("fork").Process(
                target=_fill, args=(options.dataset, arguments, status.with_name("dataset.json")), daemon=True
            )
            filler.start()
        while True:
            time.sleep(_LOOK_S)
            if restarted := server.supervise():
                say(restarts=said["restarts"] + len(restarted))
            if said["state"] == "filling" and filler is not None and filler.exitcode is not None:
                error = (
                    ""
                    if filler.exitcode == 0
                    else f"the data set was not written; see {status.parent}/console.log"
                )
                say(state="failed" if error else "ready", error=error)
    except Exception as error:
        say(state="failed", error=str(error))
        raise
    finally:
        server.stop()


def forget_store(cloud_folder: Path) -> None:
    """Remove the embedded store of a run that is over: its keys, and its data, which can be made again.

    Raises TransientError when something of it stays. A folder of the user's own (`StoreOptions.folder`) stays.
    """
    folder, status = cloud_folder / "swift", cloud_folder / "store" / STORE_FILE
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise TransientError(f"{folder}: cannot be removed; it holds the embedded store's keys")
    try:
        said = json.loads(status.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        status.unlink(missing_ok=True)
        return
    if "secret_key" in said:
        write_json(status, {k: v for k, v in said.items() if k not in ("access_key", "secret_key")})


def _fill(program: str, arguments: Mapping[str, Any], progress: Path) -> None:
    programs.call(program, arguments, functools.partial(write_json, progress))


def make_digits(arguments: Mapping[str, Any], say: Callable[[Any], None]) -> None:
    """A `dataset` program: the digits, as {"shards", "to_url", ...} of `cloud.storage.digits.make_digits`.

    Other arguments than endpoint and keys are passed on to it. `say` gets what is done so far.
    """
    from cloud.storage import digits
    from cloud.storage.client import make_client

    rest = dict(arguments)
    client = make_client(
        rest.pop("endpoint"), access_key=rest.pop("access_key"), secret_key=rest.pop("secret_key")
    )
    shards, to_url = rest.pop("shards"), rest.pop("to_url")
    uploaded: list[str] = []

    def progress(url: str) -> None:
        uploaded.append(url)
        say({"done": False, "shards": shards, "uploaded": len(uploaded)})

    say({"done": False, "shards": shards, "uploaded": 0})
    with tempfile.TemporaryDirectory() as folder:
        made = digits.make_digits(shards, to_url, client, folder=Path(folder), progress=progress, **rest)
    done = {"done": True, "shards": shards, "uploaded": len(uploaded)}
    say({**done, "train": list(made.train), "heldout": list(made.heldout)})


def forward_target(url: str) -> tuple[str, int]:
    """Host and port of a user's own endpoint. Raises InvalidRequestError for what cannot be forwarded."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidRequestError(
            f"data.endpoint '{url}': the emulated cloud reaches http://host[:port] only (TLS names the host it "
            "talks to, and peers talk to the emulated store's address); use an http endpoint or the embedded store"
        )
    return parts.hostname, parts.port or 80


def serve_forward(ns_fd: int | None, ip: str, port: int, target: tuple[str, int], status: Path) -> None:
    """Carry connections to the store's node on to `target`, reached from the machine's own network.

    `status` says {"state": "ready", "endpoint", "error"}.
    """
    listener = _listen_in(ns_fd, ip, port)
    write_json(status, {"state": "ready", "endpoint": f"http://{ip}:{port}", "error": ""})
    asyncio.run(_forward(listener, *target))


def _listen_in(ns_fd: int | None, ip: str, port: int) -> socket.socket:
    """A socket belongs to the namespace it was made in: a child makes it there and hands it over."""
    if ns_fd is None:
        return _listen(ip, port)

    def make() -> int:
        kernel.enter_network(ns_fd)
        return _listen(ip, port).detach()

    message, fd = kernel.descriptor_from_child(make)
    if fd is None:
        raise OSError(f"cannot listen on {ip}:{port}: {message}")
    return socket.socket(fileno=fd)


def _listen(ip: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((ip, port))
    listener.listen(128)
    return listener


async def _forward(listener: socket.socket, host: str, port: int) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()  # the peer's client sees a closed connection, as it would from a dead endpoint
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    server = await asyncio.start_server(carry, sock=listener)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        writer.close()
