"""How nodes are connected: by namespaces and a switch, or by plain loopback without distance."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cloud.local.network import kernel
from cloud.local.network.links import LinkKind, make_node, tun_usable
from cloud.local.network.shaper import Node, NodeKind, Shaper
from cloud.local.network.sleep_probe import SleepProbe
from cloud.local.network.switch import Switch
from cloud.local.options import LocalOptions
from cloud.local.windows import store_settings, tcp_settings, vm_limit_share
from cloud.networks import Network, NetworkError, path_model, vm_limit
from cloud.provider import InvalidRequestError, QuotaError

_LAST_INDEX = 250
_ANSWER_S = 15.0


@dataclass(frozen=True)
class NodeHandle:
    """A node as seen by the host."""

    index: int
    name: str
    ip: str
    ns_fd: int | None  # None: no namespace (loopback)


class Fabric(Protocol):
    """The network operations that the host needs. All raise OSError if the switch has died."""

    pid: int | None  # of the switch, as seen by this process

    def add(self, name: str, kind: NodeKind, location: str | None) -> NodeHandle: ...

    def cut(self, index: int) -> None: ...

    def remove(self, node: NodeHandle) -> None: ...

    def tick(self) -> None: ...

    def stop(self) -> None: ...


class SwitchFabric:
    """One namespace per node, all connected by the switch process."""

    def __init__(self, options: LocalOptions, report: Path) -> None:
        """Fork the switch. Call this before anything large is imported. Raises InvalidRequestError."""
        try:
            network = Network.load(options.network)
            limit_bps = options.vm_limit_bps or vm_limit()
            model = path_model(options.path_model)
        except NetworkError as error:
            raise InvalidRequestError(str(error)) from error
        self.link: LinkKind = options.link if options.link != "auto" else ("tun" if tun_usable() else "veth")
        if self.link == "tun" and not tun_usable():
            raise InvalidRequestError(
                "/dev/net/tun: this user may not open it; run as root, or use link 'auto', which then selects veth"
            )
        self._tcp = tcp_settings(network, options.bytes_scale, options.windows, options.network_tuning)
        limit_bps *= vm_limit_share(self._tcp)
        self._switch_ns_fd = _new_network() if self.link == "veth" else None
        # the host's own copy is only used to check whether a node can be placed
        self._check = Shaper(network, options.bytes_scale, options.time_scale, limit_bps)
        self._next = 1
        probe = _start_probe(report)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_S)
        self.pid: int | None = os.fork()
        if self.pid == 0:
            self._control.close()
            kernel.end_with_parent(signal.SIGKILL)
            with contextlib.suppress(OSError):  # not allowed to ordinary users
                os.nice(-10)
            paced = options.windows == "paced"
            shaper = Shaper(
                network,
                options.bytes_scale,
                options.time_scale,
                limit_bps,
                paced=paced,
                model=model,
                seed=options.seed,
                run_id=options.run_id,
                began_s=time.monotonic(),
            )
            _forever(lambda: Switch(shaper, theirs, report, probe).run())
        theirs.close()

    def add(self, name: str, kind: NodeKind, location: str | None) -> NodeHandle:
        index = _check_index(self._next)
        try:
            self._check.add(index, Node(name, kind, location))
        except NetworkError as error:
            raise InvalidRequestError(f"{name}: {error}") from error
        self._next += 1
        ip = f"10.77.0.{index}"
        tcp = self._tcp if kind == "vm" else store_settings()
        net = make_node(index, ip, self.link, tcp, self._switch_ns_fd)
        order = {"do": "add", "index": index, "name": name, "kind": kind, "location": location, "ip": ip}
        try:
            link = {"link": self.link, "mac": net.mac.hex(), "mtu": tcp.mtu_bytes}
            self._order({**order, **link}, net.link_fd)
        finally:
            os.close(net.link_fd)
        return NodeHandle(index, name, ip, net.ns_fd)

    def cut(self, index: int) -> None:
        self._order({"do": "cut", "index": index})

    def remove(self, node: NodeHandle) -> None:
        self._order({"do": "remove", "index": node.index})
        if node.ns_fd is not None:
            os.close(node.ns_fd)

    def tick(self) -> None:
        pass

    def stop(self) -> None:
        self._order({"do": "stop"})

    def _order(self, order: dict[str, Any], *fds: int) -> None:
        kernel.send_descriptors(self._control, json.dumps(order).encode(), fds)
        if self._control.recv(64) != b"done":
            raise OSError("the emulated network's switch has died")


class LoopbackFabric:
    """No namespaces: addresses of this machine's loopback interface, no distance, no counters."""

    link = "loopback"
    pid: int | None = None

    def __init__(self, report: Path) -> None:
        self._report, self._next = report, 1
        self._nodes: dict[str, str] = {}
        self._probe = _start_probe(report)

    def add(self, name: str, kind: NodeKind, location: str | None) -> NodeHandle:
        index = _check_index(self._next)
        self._next += 1
        # Linux accepts all of 127/8, so each VM can have its own address; macOS only accepts 127.0.0.1
        ip = f"127.77.0.{index}" if sys.platform == "linux" else "127.0.0.1"
        self._nodes[ip] = name
        return NodeHandle(index, name, ip, None)

    def cut(self, index: int) -> None:
        pass

    def remove(self, node: NodeHandle) -> None:
        pass

    def tick(self) -> None:
        fresh = self._report.with_suffix(".new")
        found = {"t": time.time(), "nodes": self._nodes, "sent_bytes": {}, "packets": 0, "dropped": 0}
        found["sleep_worst_s"] = self._probe.worst_s
        found["sleep_over_10ms_share"] = self._probe.over_10ms_share
        fresh.write_text(json.dumps(found))
        os.replace(fresh, self._report)

    def stop(self) -> None:
        pass


def _check_index(index: int) -> int:
    if index > _LAST_INDEX:
        raise QuotaError(f"the emulated cloud has no addresses left: {_LAST_INDEX} were used in this run")
    return index


def _start_probe(report: Path) -> SleepProbe:
    probe = SleepProbe(report.with_name("pace.csv"))
    if os.fork() == 0:
        _forever(probe.run)
    return probe


def _forever(body: Any) -> None:
    """Run the body of a forked process and exit without unwinding into the host's code."""
    try:
        body()
    except BaseException as error:  # noqa: BLE001 a forked process must not unwind
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def _new_network() -> int:
    """Create a network namespace for the switch's ends of veth pairs, in a child process (see make_node)."""

    def make() -> int:
        kernel.unshare(kernel.CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    message, fd = kernel.descriptor_from_child(make)
    if fd is None:
        raise InvalidRequestError(f"cannot make a network namespace: {message}")
    return fd
