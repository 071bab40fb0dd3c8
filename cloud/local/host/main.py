"""The host process of one run's emulated cloud: `python -m cloud.local.host.main CLOUD_FOLDER`.

It is single-threaded, because it forks the VMs' programs after it has imported what they need. It is PID 1 of its PID
namespace, but /proc shows the machine's pids (os.getpid() in here is not the number used in /proc).
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud import provider
from cloud.clock import steady_clock
from cloud.local.host import faults, programs, store
from cloud.local.host.control import ControlServer
from cloud.local.host.guardian import HOST_FILE, guard, write_json
from cloud.local.host.preemption import Preemptions
from cloud.local.host.vms import Vm, announce, process_title, vm_folder, write_vm_folder
from cloud.local.network.fabric import Fabric, LoopbackFabric, NodeHandle, SwitchFabric
from cloud.local.options import LocalOptions
from cloud.provider import InvalidRequestError, ProviderError, is_monitor
from cloud.targets import LOCAL
from cloud.vm_report import read_status

_GRACE_S = 10.0  # from SIGTERM to SIGKILL when a VM is terminated


class _Host:
    def __init__(self, cloud_folder: Path, options: LocalOptions, temp: Path, namespaces: bool) -> None:
        self._folder, self._run_folder, self._options, self._temp = (
            cloud_folder,
            cloud_folder.parent,
            options,
            temp,
        )
        self._mode = "namespaces" if namespaces else "loopback"
        self._now_s = steady_clock()
        self._vms: dict[str, Vm] = {}
        self._nodes: dict[str, NodeHandle] = {}
        self._locations: dict[str, str | None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._fatal = ""
        self._warm = self._stop = False
        self._heard_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._control = ControlServer(self._selector, self._answer)
        self._signals, self._signalled = socket.socketpair()
        self._preemptions = Preemptions(
            options.preempt, self._vms, self._after, self._trains, self._preempt, self._noticed
        )
        self._load_earlier_vms()
        self._fabric: Fabric = self._make_fabric()
        self._store_pid: int | None = None

    def run(self) -> None:
        self._control.listen(self._temp / "control")
        self._signals.setblocking(False)
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._selector.register(self._signals, selectors.EVENT_READ, self._wake)
        try:
            self._start_store()
            self._write()
            self._after(0.0, self._preload)
            self._after(1.0, self._tick)
            while not self._stop:
                wait = self._timers[0][0] - time.monotonic() if self._timers else 1.0
                for key, _ in self._selector.select(max(0.0, wait)):
                    key.data(key.fileobj)
                while self._timers and self._timers[0][0] <= time.monotonic():
                    heapq.heappop(self._timers)[2]()
                self._reap()
        except OSError as error:
            self._fail(str(error))
        self._end()

    # state

    def _load_earlier_vms(self) -> None:
        """Load the VMs of an earlier host of this run, whose names must not be reused."""
        with contextlib.suppress(OSError, ValueError):
            for row in json.loads((self._folder / HOST_FILE).read_text())["vms"]:
                vm = Vm.from_json(row)
                if vm.alive:
                    vm.state, vm.ended_at_s, vm.cause = (
                        "failed",
                        self._now_s(),
                        "the emulated cloud was restarted",
                    )
                self._vms[vm.vm] = vm

    def _make_fabric(self) -> Fabric:
        report = self._folder / "switch.json"
        return SwitchFabric(self._options, report) if self._mode == "namespaces" else LoopbackFabric(report)

    def _state(self) -> dict[str, Any]:
        return {
            "state": "ended" if self._stop else "ready",
            "mode": self._mode,
            "link": getattr(self._fabric, "link", ""),
            "pid": int(os.readlink("/proc/self")) if sys.platform == "linux" else os.getpid(),
            "switch_pid": programs.outer_pid(self._fabric.pid),
            "control": str(self._temp / "control"),
            "fatal": self._fatal,
            "warm": self._warm,
            "nodes": {
                n.name: {"ip": n.ip, "location": self._locations[n.name]} for n in self._nodes.values()
            },
            "vms": [vm.to_json() for vm in self._vms.values()],
        }

    def _write(self) -> None:
        """Write host.json for readers after the host's end. A full disk ends no VM: clients are answered from memory."""
        try:
            write_json(self._folder / HOST_FILE, self._state())
        except OSError as error:
            print(f"{HOST_FILE} cannot be written: {error}", flush=True)  # noqa: T201 the host's log

    # time

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._order, do))

    def _tick(self) -> None:
        self._fabric.tick()
        self._preemptions.tick()
        if time.monotonic() - self._heard_s > self._options.lease_s:
            self._fail(f"no client contacted the emulated cloud for {self._options.lease_s:.0f} s")
            self._stop = True
        self._after(1.0, self._tick)

    def _preload(self) -> None:
        for number in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMAXPROCS"):
            os.environ[number] = "1"
        os.environ["GOLOG_LOG_LEVEL"] = "error"  # p2pd's debug log alone would load a small machine
        try:
            for module in self._options.preload:
                importlib.import_module(module)
        except ImportError as error:
            self._fail(
                f"cannot import the peers' packages ({error}); install them with `{LOCAL.install}` in a clone of orch"
            )
            return
        self._warm = True
        for vm in list(self._vms.values()):
            self._start_when_due(vm)
        self._write()

    # signals and children

    def _on_signal(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._stop = True

    def _wake(self, wire: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            wire.recv(4096)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._child_ended(pid, os.waitstatus_to_exitcode(status))

    def _child_ended(self, pid: int, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if pid == self._fabric.pid and not self._stop:
            self._fabric.pid = None
            self._fail(f"the emulated network's switch {how}: the run cannot continue; start it again")
        elif pid == self._store_pid and not self._stop:
            self._store_pid = None
            print(f"the store's supervisor {how}; restarting it", flush=True)  # noqa: T201 the host's log
            self._after(1.0, self._start_store)
        for vm in self._vms.values():
            if vm.host_pid == pid and vm.alive:
                if code == 0 and vm.notice_at_s is not None and not vm.terminating:
                    # the program has exited after a notice; the VM exists, and is billed, until it is preempted
                    programs.kill_until_gone(self._nodes[vm.vm].ns_fd, vm.host_pid)
                    vm.host_pid = vm.pid = None
                    self._write()
                    continue
                state = "terminated" if vm.terminating or code == 0 else "failed"
                self._end_vm(vm, state, "terminated" if vm.terminating else f"its program {how}")

    def _fail(self, why: str) -> None:
        """End all VMs because the cloud cannot continue; the host stays up to report the reason."""
        self._fatal = self._fatal or why
        print(why, flush=True)  # noqa: T201 the host's log
        for vm in self._vms.values():
            if vm.alive:
                self._end_vm(vm, "failed", why)
        self._write()

    # nodes and VMs

    def _add_node(self, name: str, kind: Any, location: str | None) -> NodeHandle:
        node = self._fabric.add("monitor" if kind == "monitor" else name, kind, location)
        self._nodes[name], self._locations[node.name] = node, location
        return node

    def _start_store(self) -> None:
        options = self._options.store
        if options.kind == "none" or self._stop:
            return
        node = self._nodes.get("store") or self._add_node("store", "store", options.location)
        self._store_pid = store.start(
            options,
            self._folder,
            node.ip,
            node.ns_fd,
            self._temp / "t" / "store",
            self._own_fds(but=node.ns_fd),
        )

    def _own_fds(self, but: int | None = None) -> list[int]:
        found = [*self._control.descriptors(), self._signals.fileno(), self._signalled.fileno()]
        found += [n.ns_fd for n in self._nodes.values() if n.ns_fd is not None and n.ns_fd != but]
        return found

    def _request(self, order: dict[str, Any]) -> None:
        name, location = order["vm"], order["location"]
        if name in self._vms:
            return
        if self._fatal:
            raise InvalidRequestError(self._fatal)
        if not name or "/" in name or name.startswith(".") or name == "store":
            raise InvalidRequestError(f"'{name}' is not a valid VM name")
        monitor = is_monitor(name)
        if not monitor:
            alive = [vm.location for vm in self._vms.values() if vm.alive and vm.billed]
            faults.check_capacity(location, self._options.capacity, alive)
        faults.check_memory(1, self._options.peer_memory_bytes, faults.available_memory())
        node = self._add_node(name, "monitor" if monitor else "vm", location)
        config = dict(order["config"])
        if config.get("listen_address") == "":
            config["listen_address"] = node.ip
        # All VMs share one address in this case, so the ports must differ.
        if node.ip == "127.0.0.1" and "listen_port" in config:
            config["listen_port"] += node.index
        contents = {key: base64.b64decode(text) for key, text in order["files"].items()}
        write_vm_folder(
            vm_folder(self._run_folder, name),
            {**contents, "config.json": json.dumps(config).encode()},
            order.get("folders", {}),
        )
        vm = Vm(name, location, node.ip, node.index, order["program"], not monitor, self._now_s())
        vm.labels = dict(order.get("labels", {}))
        self._vms[name] = vm
        self._start_when_due(vm)
        self._write()

    def _start_when_due(self, vm: Vm) -> None:
        boot_s = self._options.boot_s if vm.billed else 0.0
        self._after(max(0.0, vm.requested_at_s + boot_s - self._now_s()), lambda: self._start(vm))

    def _start(self, vm: Vm) -> None:
        if vm.state != "pending" or not self._warm:
            return
        node = self._nodes[vm.vm]
        folder = vm_folder(self._run_folder, vm.vm)
        vm.host_pid, vm.pid = programs.start(
            vm.program,
            (folder / "config.json",),
            ns_fd=node.ns_fd,
            folder=folder,
            title=process_title(vm.vm, self._run_folder.name),
            temp=self._temp / "t" / str(node.index),
            environment={**self._options.environment, "ORCH_VM": vm.vm, "ORCH_ADDRESS": vm.address},
            close=self._own_fds(but=node.ns_fd),
        )
        vm.state, vm.ready_at_s = "running", self._now_s()
        if vm.billed:
            self._preemptions.started(vm)
        self._write()

    def _trains(self, vm: Vm) -> bool:
        return read_status(vm_folder(self._run_folder, vm.vm) / "status.json").get("phase") == "training"

    def _preempt(self, vm: Vm) -> None:
        if vm.alive:
            self._end_vm(vm, "preempted", "the provider took the VM back")

    def _noticed(self, vm: Vm) -> None:
        announce(self._run_folder, vm)
        self._write()

    def _terminate(self, vm: Vm) -> None:
        if not vm.alive or vm.terminating:
            return
        if vm.host_pid is None:
            self._end_vm(vm, "terminated", "terminated")
            return
        vm.terminating, vm.cause = True, "terminating"
        with contextlib.suppress(ProcessLookupError):
            os.kill(vm.host_pid, signal.SIGTERM)
        self._after(_GRACE_S, lambda: self._end_vm(vm, "terminated", "terminated") if vm.alive else None)

    def _end_vm(self, vm: Vm, state: provider.VmState, cause: str) -> None:
        """End a VM: first drop its packets (so that no FIN leaves), then kill its processes, then remove its namespace."""
        vm.state, vm.ended_at_s, vm.cause = state, self._now_s(), cause
        node = self._nodes[vm.vm]
        gone = self._fabric.pid is None and self._mode == "namespaces"
        if not gone:
            with contextlib.suppress(OSError):  # the switch has just died, which is noticed next
                self._fabric.cut(node.index)
        programs.kill_until_gone(node.ns_fd, vm.host_pid)
        if not gone:
            with contextlib.suppress(OSError):
                self._fabric.remove(node)
        self._nodes[vm.vm] = NodeHandle(node.index, node.name, node.ip, None)
        self._write()

    # the control socket

    def _answer(self, line: bytes) -> dict[str, Any]:
        self._heard_s = time.monotonic()
        self._reap()
        try:
            return {"ok": self._execute(json.loads(line))}
        except ProviderError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except OSError as error:
            return {"error": "TransientError", "text": f"the emulated cloud: {error}"}
        except (ValueError, KeyError, TypeError) as error:
            return {
                "error": "InvalidRequestError",
                "text": f"the emulated cloud cannot process the request: {error!r}",
            }

    def _execute(self, order: dict[str, Any]) -> Any:
        vm = self._vms.get(order.get("vm", ""))
        match order["do"]:
            case "request":
                self._request(order)
            case "observe":
                return self._state()
            case "terminate" if vm:
                self._terminate(vm)
            case "preempt" if vm:
                if order.get("notice_s") is None:
                    self._preempt(vm)
                else:
                    self._preemptions.give_notice(vm, float(order["notice_s"]))
            case "cut" if vm:
                self._fabric.cut(vm.index)
            case "shutdown":
                for each in self._vms.values():
                    self._terminate(each)
                self._after(0.0, self._stop_when_quiet)
            case "terminate" | "preempt" | "cut":
                pass  # the VM does not exist or has ended
            case other:
                raise ValueError(f"unknown command: {other}")
        return None

    def _stop_when_quiet(self) -> None:
        if any(vm.alive for vm in self._vms.values()):
            self._after(0.05, self._stop_when_quiet)
        else:
            self._stop = True

    def _end(self) -> None:
        self._stop = True
        for vm in self._vms.values():
            if vm.alive:
                self._end_vm(vm, "terminated", self._fatal or "the emulated cloud was shut down")
        if self._store_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._store_pid, signal.SIGTERM)
        with contextlib.suppress(OSError):
            self._fabric.stop()
        self._write()


def _run(cloud_folder: Path, options: LocalOptions, temp: Path, namespaces: bool) -> None:
    try:
        host = _Host(cloud_folder, options, temp, namespaces)
    except ProviderError as error:
        rows: list[Any] = []
        write_json(
            cloud_folder / HOST_FILE, {"state": "ended", "fatal": str(error), "vms": rows, "nodes": {}}
        )
        sys.exit(1)
    host.run()


def main() -> int:
    """Run the host for the folder named on the command line, guarded."""
    return guard(Path(sys.argv[1]).absolute(), _run)


if __name__ == "__main__":
    sys.exit(main())
