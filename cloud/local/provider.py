"""The emulated cloud as a provider: a thin client of the host process, created from the run's folder."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud import provider
from cloud.local.host import faults, guardian
from cloud.local.host.store import (
    DATASET_FILE,
    STORE_FILE,
    forward_target,
    keep_from_store,
    remove_store,
)
from cloud.local.host.vms import Vm, observed, owned, vm_folder
from cloud.local.options import LocalOptions
from cloud.provider import (
    EndedError,
    InvalidRequestError,
    LaunchRequest,
    LostError,
    Observed,
    Offer,
    Owned,
    TransientError,
)

_START_S, _CALL_S, _CLOSE_S = 60.0, 120.0, 30.0  # a call may have to wait for the host's imports


class LocalCloud:
    """A run's emulated cloud. Stateless: any process may create a client from the run's folder."""

    name = "local"

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder.absolute()
        self._folder = self._run_folder / "cloud"

    @classmethod
    def start(cls, run_folder: Path, options: LocalOptions) -> LocalCloud:
        """Start the run's host process unless it is running. It is detached, so that it outlives this process.

        Raises InvalidRequestError if this machine or the options do not allow it: not enough memory for
        `expected_peers`, namespaces requested but not available, unknown network, endpoint that cannot be forwarded to.
        """
        cloud = cls(run_folder)
        if guardian.is_alive(cloud._folder):
            return cloud
        faults.check_memory(options.expected_peers, options.peer_memory_bytes, faults.available_memory())
        if options.store.kind == "forward":
            forward_target(options.store.url)
        if options.store.kind == "swift" and not options.store.swift_environment:
            from cloud.storage.swift_environment import swift_environment

            made = str(swift_environment())
            options = dataclasses.replace(
                options, store=dataclasses.replace(options.store, swift_environment=made)
            )
        guardian.reap(run_folder)
        cloud._folder.mkdir(parents=True, exist_ok=True)
        options.save(cloud._folder / "options.json")
        _mark_starting(cloud._folder / guardian.HOST_FILE)
        package_root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        with (cloud._folder / "host.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloud.local.host.main", str(cloud._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        cloud._await_ready(process)
        return cloud

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_S
        while (state := self._file()).get("state") != "ready":
            if process.poll() is not None or time.monotonic() > deadline:
                fatal = (
                    self._file().get("fatal")
                    or f"the emulated cloud did not start; see {self._folder}/host.log"
                )
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
                guardian.reap(self._run_folder)
                raise InvalidRequestError(fatal)
            time.sleep(0.02)
        if state["fatal"]:
            raise InvalidRequestError(state["fatal"])
        process.returncode = 0  # detached from here on: suppresses Popen's warning about a running child

    # the provider's contract

    def offers(self, location: str, accelerator: str, use_spot: bool) -> Sequence[Offer]:
        """Return one offer for any location; its price is taken from the price book instead."""
        no_price = "the emulated cloud has no prices of its own"
        return [Offer(location, "emulated", accelerator, use_spot, None, no_price)]

    def request(self, request: LaunchRequest) -> None:
        """Rent a VM; an empty `config["listen_address"]` is replaced by its address. Monitors are not billed.

        Raises NoCapacityError, InvalidRequestError (no memory, no such path in the network, the cloud has ended),
        TransientError, AmbiguousError.
        """
        files = {name: base64.b64encode(content).decode() for name, content in request.files.items()}
        self._call(
            do="request",
            vm=request.vm,
            location=request.offer.location,
            program=request.program,
            config=dict(request.config),
            files=files,
            folders=dict(request.folders),
            labels=dict(request.labels),
        )

    def observe(self) -> Sequence[Observed]:
        """Return all VMs of the run, including the monitor.

        Raises LostError if the cloud cannot continue, EndedError if it has ended because of that.
        """
        state = self.state()
        if state.get("fatal"):
            raise (LostError if self.alive else EndedError)(state["fatal"])
        return [observed(Vm.from_json(row), self._run_folder) for row in state.get("vms", [])]

    def terminate(self, vm: str) -> None:
        """Send SIGTERM, and SIGKILL after 10 s; returns immediately."""
        if guardian.is_alive(self._folder):
            self._call(do="terminate", vm=vm)

    def collect(self, vm: str) -> str:
        """Return the VM's folder, which is on this machine."""
        return str(vm_folder(self._run_folder, vm))

    def list_ours(self, owner: str) -> Sequence[Owned]:
        """Return the living VMs with the label orch-owner = `owner` of every run in the same folder as this one.

        If a run does not answer, its VMs are listed as last recorded.
        """
        found: list[Owned] = []
        for file in sorted(self._run_folder.parent.glob(f"*/cloud/{guardian.HOST_FILE}")):
            cloud = LocalCloud(file.parents[1])
            if not cloud.alive:
                continue
            try:
                rows = cloud.state().get("vms", [])
            except provider.ProviderError:
                rows = _read(file).get("vms", [])
            found += [
                owned(vm, cloud._run_folder.name)
                for vm in map(Vm.from_json, rows)
                if owner and vm.alive and vm.labels.get("orch-owner") == owner
            ]
        return found

    def release(self, owned: Owned) -> None:
        """End one of these VMs. Raises InvalidRequestError if it does not carry the label."""
        folder, _, name = owned.id.partition("/")
        cloud = LocalCloud(self._run_folder.parent / folder)
        rows = map(Vm.from_json, cloud.state().get("vms", []) if cloud.alive else [])
        vm = next((vm for vm in rows if vm.vm == name), None)
        if vm is None or not vm.alive:
            return
        if not owned.owner or vm.labels.get("orch-owner") != owned.owner:
            raise InvalidRequestError(f"{owned.id} does not carry the label orch-owner={owned.owner!r}")
        cloud.terminate(name)

    def close(self) -> None:
        """End all VMs and the host, and remove what is left, including the store's keys. Idempotent.

        Raises TransientError if the host does not end, or what is to be kept of the store cannot be copied.
        """
        if guardian.is_alive(self._folder):
            with contextlib.suppress(provider.ProviderError):  # if this fails, the host is killed below
                self._call(do="shutdown")
            deadline = time.monotonic() + _CLOSE_S
            while guardian.is_alive(self._folder) and time.monotonic() < deadline:
                time.sleep(0.02)
            self._kill()
        if not guardian.reap(self._run_folder):
            raise TransientError(f"{self._folder}: the emulated cloud does not end; try again")
        if (self._run_folder / "vms").is_dir():  # otherwise nothing can be stored
            keep_from_store(self._folder)
        remove_store(self._folder)
        # A VM's disk goes with the VM, except for its logs.
        for cache in (self._run_folder / "vms").glob("*/cache"):
            shutil.rmtree(cache, ignore_errors=True)

    def _kill(self) -> None:
        """Kill a host that did not end on request."""
        pid = self._file().get("pid")
        if pid and guardian.is_alive(self._folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 5
            while guardian.is_alive(self._folder) and time.monotonic() < deadline:
                time.sleep(0.02)

    # beyond the contract: operations and state that only an emulated cloud has

    @property
    def mode(self) -> str:
        """ "namespaces", or "loopback" (no distance); "" before the start."""
        return self._file().get("mode", "")

    @property
    def fatal(self) -> str:
        """Why the cloud cannot continue, one sentence; "" if it can."""
        return self._file().get("fatal", "")

    @property
    def alive(self) -> bool:
        """Whether the host process or its guardian is running."""
        return guardian.is_alive(self._folder)

    def state(self) -> dict[str, Any]:
        """Content of host.json, from the host if it is alive: mode, link, nodes {name: {ip, location}}, vms, fatal."""
        if not guardian.is_alive(self._folder):
            if self._file().get("state") in ("ready", "starting"):
                guardian.reap(self._run_folder)
            return self._file()
        try:
            return self._call(do="observe")
        except TransientError:
            if guardian.is_alive(self._folder):
                raise
            return self._file()  # the host ended between the two checks

    def store(self) -> dict[str, Any]:
        """The store node's state, endpoint and keys (see `cloud.local.host.store`), and the data set's progress."""
        found = _read(self._folder / "store" / STORE_FILE)
        progress = _read(self._folder / "store" / DATASET_FILE)
        return {**found, "dataset": progress} if found else {}

    def counters(self) -> dict[str, Any]:
        """The latest switch.json, at most a second old; {} before the first."""
        return _read(self._folder / "switch.json")

    def preempt(self, vm: str, notice_s: float | None = None) -> None:
        """Preempt a VM now (its packets are dropped, then its processes killed), or announce it `notice_s` before."""
        self._call(do="preempt", vm=vm, notice_s=notice_s)

    def cut(self, vm: str) -> None:
        """Drop all packets of a VM from now on; its processes keep running."""
        self._call(do="cut", vm=vm)

    # communication with the host

    def _file(self) -> dict[str, Any]:
        return _read(self._folder / guardian.HOST_FILE)

    def _call(self, **order: Any) -> Any:
        path = self._file().get("control", "")
        if not guardian.is_alive(self._folder) or not path:
            ended = InvalidRequestError if self.alive else EndedError
            raise ended(self.fatal or f"{self._folder}: the emulated cloud of this run has ended")
        sent = False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
                wire.settimeout(_CALL_S)
                wire.connect(path)
                sent = True
                wire.sendall(json.dumps(order).encode() + b"\n")
                with wire.makefile("rb") as reader:
                    line = reader.readline()
        except OSError as error:
            kind = provider.AmbiguousError if sent and order["do"] == "request" else TransientError
            raise kind(
                f"the emulated cloud does not answer ({error}); see {self._folder}/host.log"
            ) from error
        if not line.endswith(b"\n"):
            kind = provider.AmbiguousError if order["do"] == "request" else TransientError
            raise kind(f"the emulated cloud ended during a request; see {self._folder}/host.log")
        answer = json.loads(line)
        if "error" in answer:
            raise getattr(provider, answer["error"])(answer["text"])
        return answer["ok"]


def _mark_starting(path: Path) -> None:
    """Keep the VMs of an earlier host, whose names are taken, but not its end."""
    earlier = _read(path)
    vms: list[Any] = earlier.get("vms", [])
    guardian.write_json(path, {"state": "starting", "fatal": "", "nodes": {}, "vms": vms})


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
