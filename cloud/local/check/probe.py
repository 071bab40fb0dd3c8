"""The VM program that measures the emulated network from inside: round trips and the rate of one stream."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloud.local.host.guardian import write_json

PORT = 5201
_ECHOES = 5
_BLOCK = 1 << 14
_HEAD = struct.Struct("!4sd16s")  # command, duration in seconds, name of the measurement


def rounds(
    pairs: Sequence[tuple[str, str]], busy: Mapping[str, Sequence[str]]
) -> list[list[tuple[str, str]]]:
    """Pack pairs of places into rounds in which no VM is in two measurements.

    `busy` names the VMs of each place; a pair within a place uses its first two. Returns rounds of
    (sending VM, receiving VM), in the order of `pairs`.
    """
    packed: list[list[tuple[str, str]]] = []
    for source, target in pairs:
        for k in range(len(packed) + 1):
            if k == len(packed):
                packed.append([])
            used = {vm for pair in packed[k] for vm in pair}
            free_source = [vm for vm in busy[source] if vm not in used]
            free_target = [vm for vm in busy[target] if vm not in used and vm not in free_source[:1]]
            if free_source and free_target:
                packed[k].append((free_source[0], free_target[0]))
                break
    return packed


def main(config_path: Path) -> None:
    """Serve measurements of other VMs and carry out plan.json: a list of {"at_s", "do", "to", "key", "seconds"}."""
    folder = config_path.parent
    address = json.loads(config_path.read_text())["listen_address"]
    server = _Server(address)
    threading.Thread(target=server.run, daemon=True).start()
    write_json(folder / "status.json", {"phase": "ready"})
    plan = folder / "plan.json"
    while not plan.exists():
        time.sleep(0.05)
    results: list[dict[str, Any]] = []
    for task in json.loads(plan.read_text()):
        time.sleep(max(0.0, task["at_s"] - time.time()))
        results.append({"key": task["key"], **_measure(task)})
    write_json(folder / "status.json", {"phase": "done", "results": results})
    threading.Event().wait()  # other VMs may still be measuring to this one


def _measure(task: Mapping[str, Any]) -> dict[str, Any]:
    to, key, seconds = task["to"], task["key"], task["seconds"]
    if task["do"] == "rtt":
        return {"rtt_s": _round_trip(to, key)}
    with _connect(to, task["do"], seconds, key) as wire:
        if task["do"] == "both":
            back = _Receiver(wire)
            receiving = threading.Thread(target=back.run)
            receiving.start()
            _send(wire, seconds)
            receiving.join()
            there = _ask(to, key)
            return {"bps": there, "back_bps": back.bps}
        _send(wire, seconds)
        wire.settimeout(120)
        wire.recv(1)  # wait until the other end has received everything
    return {"bps": _ask(to, key)}


def _connect(to: str, do: str, seconds: float, key: str) -> socket.socket:
    wire = socket.create_connection((to, PORT), timeout=10)
    wire.settimeout(None)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.sendall(_HEAD.pack(do[:4].encode(), seconds, key.encode()))
    return wire


def _round_trip(to: str, key: str) -> float:
    """The smallest of several round trips: anything above it is this machine's scheduling, not the network."""
    with _connect(to, "rtt", 0.0, key) as wire:
        found: list[float] = []
        for _ in range(_ECHOES):
            began = time.perf_counter()
            wire.sendall(b"p")
            wire.recv(1)
            found.append(time.perf_counter() - began)
    return min(found)


def _ask(to: str, key: str) -> float:
    with _connect(to, "ask", 0.0, key) as wire:
        return struct.unpack("!d", wire.recv(8))[0]


def _send(wire: socket.socket, seconds: float) -> None:
    block, end = bytes(_BLOCK), time.monotonic() + seconds
    while time.monotonic() < end:
        wire.sendall(block)
    wire.shutdown(socket.SHUT_WR)


def steady_bps(arrivals: Sequence[tuple[float, int]]) -> float:
    """Bits/s after the first two fifths of the time, when the stream has its full rate. `arrivals`: (s, bytes).

    Fits a line through the cumulative bytes: a stream that is limited by its window arrives in bursts, one per round trip,
    so counting between two moments would be off by up to one burst. 0.0 if there are too few arrivals.
    """
    if len(arrivals) <= 10:
        return 0.0
    steady_s = arrivals[0][0] + 0.4 * (arrivals[-1][0] - arrivals[0][0])
    so_far, points = 0, list[tuple[float, int]]()
    for at_s, size in arrivals:
        if at_s >= steady_s:
            # one point before and one after each arrival, so that time without arrivals counts too
            points += [(at_s, so_far), (at_s, so_far + size)]
        so_far += size
    return 8 * _slope(points)


def _slope(points: Sequence[tuple[float, int]]) -> float:
    """Slope of the least-squares line through steps; each stretch between two points is weighted by its length."""
    weight = mean_t = mean_n = 0.0
    stretches = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, b[0] - a[0]) for a, b in itertools.pairwise(points)]
    for t, n, w in stretches:
        weight, mean_t, mean_n = weight + w, mean_t + w * t, mean_n + w * n
    if weight == 0:
        return 0.0
    mean_t, mean_n = mean_t / weight, mean_n / weight
    spread = sum(w * ((t - mean_t) ** 2 + w * w / 12) for t, _, w in stretches)
    return sum(w * (t - mean_t) * (n - mean_n) for t, n, w in stretches) / spread


class _Receiver:
    """Reads a connection to its end and measures the rate."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self.bps = 0.0

    def run(self) -> None:
        arrivals: list[tuple[float, int]] = []
        while data := self._wire.recv(1 << 16):
            arrivals.append((time.monotonic(), len(data)))
        self.bps = steady_bps(arrivals)


class _Server:
    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, PORT), backlog=32)
        self._found: dict[str, float] = {}
        self._changed = threading.Condition()

    def run(self) -> None:
        while True:
            wire, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: socket.socket) -> None:
        with wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = wire.recv(_HEAD.size, socket.MSG_WAITALL)
            if len(head) < _HEAD.size:
                return
            do, seconds, name = _HEAD.unpack(head)
            do, key = do.rstrip(b"\0"), name.rstrip(b"\0").decode()
            if do == b"rtt":
                while data := wire.recv(1):
                    wire.sendall(data)
            elif do == b"ask":
                with self._changed:
                    self._changed.wait_for(lambda: key in self._found, timeout=60)
                    wire.sendall(struct.pack("!d", self._found.get(key, 0.0)))
            else:
                sending = threading.Thread(target=_send, args=(wire, seconds))
                if do == b"both":
                    sending.start()
                receiver = _Receiver(wire)
                receiver.run()
                with self._changed:
                    self._found[key] = receiver.bps
                    self._changed.notify_all()
                if do == b"both":
                    sending.join()
