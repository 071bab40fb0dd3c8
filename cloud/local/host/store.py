"""The store's node: the embedded Swift with its data set, kept running; or a forwarder to the user's own endpoint."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloud.local.host import programs
from cloud.local.host.guardian import write_json
from cloud.local.host.vms import process_title
from cloud.local.network import kernel
from cloud.local.options import LocalOptions, StoreOptions
from cloud.provider import InvalidRequestError, TransientError
from cloud.storage.errors import StorageError

STORE_FILE = "store.json"
DATASET_FILE = "dataset.json"
KEPT_FILE = "kept.json"
_LOOK_S = 0.5


def start(
    options: StoreOptions, cloud_folder: Path, ip: str, ns_fd: int | None, temp: Path, close: Sequence[int]
) -> int:
    """Fork the process that runs the store and return its pid. Raises InvalidRequestError for an unusable URL."""
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
        program, arguments, ns_fd=enter, folder=folder,
        title=process_title("store", cloud_folder.parent.name), temp=temp, environment={}, close=close,
    )[0]  # fmt: skip


def serve_swift(options: StoreOptions, folder: Path, ip: str, status: Path) -> None:
    """Run Swift in this (the store's) namespace until killed; servers that die are restarted.

    `status` (0600, since it contains the store's keys) is {"state": "starting|filling|ready|failed", "endpoint",
    "access_key", "secret_key", "dataset", "restarts", "error"}.
    """
    from cloud.storage.swift import SwiftServer

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the servers die with this process
    status.touch(mode=0o600)
    state: dict[str, Any] = {"state": "starting", "restarts": 0, "error": ""}

    def update(**more: Any) -> None:
        state.update(more)
        write_json(status, state)
        status.chmod(0o600)

    update()
    server = SwiftServer(folder, ip, options.port, environment=Path(options.swift_environment))
    try:
        server.start()
        server.wait_ready(60)
        keys = {"access_key": server.credentials.access_key, "secret_key": server.credentials.secret_key}
        update(endpoint=server.endpoint, **keys, state="filling" if options.dataset else "ready")
        filler = None
        if options.dataset:
            store = {"endpoint": server.endpoint, **keys}
            filler = multiprocessing.get_context("fork").Process(
                target=_fill, args=(options, store, status.with_name(DATASET_FILE)), daemon=True
            )
            filler.start()
        while True:
            time.sleep(_LOOK_S)
            if restarted := server.supervise():
                update(restarts=state["restarts"] + len(restarted))
            if state["state"] == "filling" and filler is not None and filler.exitcode is not None:
                error = "" if filler.exitcode == 0 else _why_not_filled(status.parent)
                update(state="failed" if error else "ready", error=error)
    except Exception as error:
        update(state="failed", error=str(error))
        raise
    finally:
        server.stop()


def keep_from_store(cloud_folder: Path) -> None:
    """Call the program `keep` of the options of a cloud that has ended, with its embedded store started once more.

    What it reports is written to store/kept.json. Does nothing if there is no such program, or nothing is stored. Raises
    TransientError if the program fails; the store is as it was then.
    """
    from cloud.storage.swift import SwiftServer

    data = cloud_folder / "swift"
    options = LocalOptions.load(cloud_folder / "options.json").store if data.is_dir() else StoreOptions()
    if not options.keep:
        return
    report = functools.partial(write_json, cloud_folder / "store" / KEPT_FILE)
    try:
        with SwiftServer(data, environment=Path(options.swift_environment)) as server:
            keys = {"access_key": server.credentials.access_key, "secret_key": server.credentials.secret_key}
            arguments = {**options.keep_arguments, "endpoint": server.endpoint, **keys}
            programs.call(options.keep, arguments, report)
    except (StorageError, OSError) as error:
        raise TransientError(
            f"the run's last checkpoint could not be copied out of the embedded store in {data}: {error}; the store stays "
            "until that succeeds: remove the cause (a full disk?), then repeat `orch down`"
        ) from error


def remove_store(cloud_folder: Path) -> None:
    """Remove the embedded store of a finished run: its keys, and its data, which can be created again.

    A folder of the user's own (`StoreOptions.folder`) is kept. Raises TransientError if something cannot be removed.
    """
    folder, status = cloud_folder / "swift", cloud_folder / "store" / STORE_FILE
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise TransientError(f"{folder}: cannot be removed; it contains the embedded store's keys")
    try:
        state = json.loads(status.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        status.unlink(missing_ok=True)
        return
    if "secret_key" in state:
        write_json(status, {k: v for k, v in state.items() if k not in ("access_key", "secret_key")})


def _fill(options: StoreOptions, store: Mapping[str, str], progress: Path) -> None:
    """Call the programs `dataset` and `restore`. What they report is written to `progress`. `store`: endpoint and keys."""
    report = functools.partial(write_json, progress)
    made: dict[str, Any] = {}

    def report_made(now: Mapping[str, Any]) -> None:
        made.update(now)
        report(made)

    try:
        programs.call(options.dataset, {**options.dataset_arguments, **store}, report_made)
        if options.restore:
            report({**made, "done": False})
            programs.call(
                options.restore,
                {**options.restore_arguments, **store},
                lambda now: report({**made, "done": False, **now}),
            )
            report(made)
    except Exception as error:
        report({"done": False, "error": f"{type(error).__name__}: {error}"})
        raise


def _why_not_filled(folder: Path) -> str:
    try:
        why = f" ({json.loads((folder / DATASET_FILE).read_text())['error']})"
    except (OSError, ValueError, KeyError):  # the process was killed
        why = ""
    return f"the data set was not written{why}; see {folder}/console.log"


def make_digits(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """A `dataset` program that creates the digits: {"shards", "to_url", ...} of `cloud.storage.digits.make_digits`.

    Arguments other than endpoint and keys are passed on to that function. `report` receives the progress.
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
        report({"done": False, "shards": shards, "uploaded": len(uploaded)})

    report({"done": False, "shards": shards, "uploaded": 0})
    with tempfile.TemporaryDirectory() as folder:
        made = digits.make_digits(shards, to_url, client, folder=Path(folder), progress=progress, **rest)
    done = {"done": True, "shards": shards, "uploaded": len(uploaded)}
    report({**done, "train": list(made.train), "heldout": list(made.heldout)})


def make_generated(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """A `dataset` program for the other data sets: {"dataset", "shards", "to_url", ...} of `store_in_shards`.

    Arguments other than endpoint and keys are passed on to that function. `report` receives the progress.
    """
    from cloud.datasets.in_shards import store_in_shards
    from cloud.storage.client import make_client
    from cloud.storage.publish import Progress
    from cloud.storage.shards import HELDOUT, SPLITS, TRAIN

    rest = dict(arguments)
    client = make_client(
        rest["endpoint"], access_key=rest.pop("access_key"), secret_key=rest.pop("secret_key")
    )
    dataset, shards, to_url = rest.pop("dataset"), rest.pop("shards"), rest.pop("to_url")
    begun = {"dataset": dataset, "shards": shards}
    reported_s = 0.0
    lock = threading.Lock()

    def progress(now: Progress) -> None:
        nonlocal reported_s
        with lock:  # it is called from several threads, for each sample
            if time.monotonic() - reported_s >= _LOOK_S:
                reported_s = time.monotonic()
                report({"done": False, **begun, "samples": now.samples, "uploaded": now.uploaded})

    sys.stderr.write(f"making {shards} shards of {dataset} for {to_url}\n")
    report({"done": False, **begun, "samples": 0, "uploaded": 0})
    with tempfile.TemporaryDirectory() as folder:
        index = store_in_shards(
            dataset, shards, to_url, client, folder=Path(folder), progress=progress, **rest
        )
    samples = {split: index.samples(split) for split in SPLITS}
    sys.stderr.write(f"stored {samples[TRAIN]} training samples and {samples[HELDOUT]} held-out ones\n")
    names = {split: [shard.name for shard in index.of(split)] for split in SPLITS}
    report({"done": True, **begun, "samples": sum(samples.values()), "uploaded": len(index.shards), **names})


def forward_target(url: str) -> tuple[str, int]:
    """Host and port of the user's own endpoint. Raises InvalidRequestError if it cannot be forwarded to."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidRequestError(
            f"data.endpoint '{url}': the emulated cloud can only forward to http://host[:port] (TLS checks the host "
            "name, but peers connect to the emulated store's address); use an http endpoint or the embedded store"
        )
    return parts.hostname, parts.port or 80


def serve_forward(ns_fd: int | None, ip: str, port: int, target: tuple[str, int], status: Path) -> None:
    """Forward connections to the store's node to `target`, which is reached from the machine's own network.

    `status` is {"state": "ready", "endpoint", "error"}.
    """
    listener = _listen_in(ns_fd, ip, port)
    write_json(status, {"state": "ready", "endpoint": f"http://{ip}:{port}", "error": ""})
    asyncio.run(_forward(listener, *target))


def _listen_in(ns_fd: int | None, ip: str, port: int) -> socket.socket:
    """Create a listening socket in a namespace: a child creates it there and passes it back."""
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
            writer.close()  # the client sees a closed connection, as from a dead endpoint
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
