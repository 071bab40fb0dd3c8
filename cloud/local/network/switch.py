"""The user-space switch: one process that holds every node's link and delays, paces, counts and drops packets.

It is controlled over a socket from the host: one JSON object per message, accompanied by a link's descriptor.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud.local.network import kernel
from cloud.local.network.acknowledgements import Acknowledgements
from cloud.local.network.lateness import Lateness
from cloud.local.network.links import Link, open_link
from cloud.local.network.shaper import Node, Shaper
from cloud.local.network.sleep_probe import SleepProbe

_REPORT_S = 1.0
_BATCH = 64  # packets read from one link before the next link is served


class Switch:
    """Forwards packets between nodes until it is stopped or the host dies."""

    def __init__(self, shaper: Shaper, control: socket.socket, report: Path, probe: SleepProbe) -> None:
        self._shaper, self._control, self._report_path, self._probe = shaper, control, report, probe
        self._links: dict[int, Link] = {}
        self._index_of: dict[int, int] = {}  # by descriptor
        self._names: dict[int, str] = {}
        self._ips: dict[str, str] = {}
        self._sent: dict[tuple[int, int], int] = {}
        self._cut: set[int] = set()
        self._queue: list[tuple[float, int, int, int, bytes]] = []
        self._packets = self._dropped = self._order = 0
        self._zero_s = time.time() - time.monotonic()
        self._lateness = Lateness(self._zero_s)
        self._acknowledgements = None if shaper.paced else Acknowledgements()
        self._watched: list[int] = [control.fileno()]
        self._stop = False

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Forward packets. Writes the report once a second and at the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kernel.precise_timers()
        gc.disable()  # nothing here creates cycles, and a collection would be a pause
        control_fd = self._control.fileno()
        next_report = clock() + _REPORT_S
        while not self._stop:
            now = clock()
            wait = min(self._queue[0][0] if self._queue else next_report, next_report) - now
            # select instead of epoll: its timeout is in microseconds, epoll's in milliseconds
            for fd in select.select(self._watched, (), (), max(0.0, wait))[0]:
                if fd == control_fd:
                    self._execute()
                elif fd in self._index_of:  # else the host has just had it removed
                    self._accept(self._index_of[fd], clock)
            now = clock()
            self._deliver(now)
            if now >= next_report:
                next_report = now + _REPORT_S
                self._write_report()
        self._write_report()

    def _accept(self, source: int, clock: Callable[[], float]) -> None:
        link, due, sent = self._links[source], self._shaper.due, self._sent
        now = clock()
        for _ in range(_BATCH):
            packet = link.recv()
            if packet is None:
                return
            if len(packet) < 40 or packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x4d\x00":
                continue  # not IPv4, or not addressed to a node
            target = packet[19]
            if target not in self._links or source in self._cut:
                continue
            sent[source, target] = sent.get((source, target), 0) + len(packet)
            self._order += 1
            heapq.heappush(
                self._queue, (due(now, source, target, packet), self._order, source, target, packet)
            )

    def _deliver(self, now: float) -> None:
        queue, note, acknowledgements = self._queue, self._lateness.note, self._acknowledgements
        while queue and queue[0][0] <= now:
            due, _, source, target, packet = heapq.heappop(queue)
            note(now, due)
            self._packets += 1
            if source in self._cut or target in self._cut:
                continue
            if acknowledgements is not None:
                packet = acknowledgements.delivered(source, target, packet)
            try:
                self._links[target].send(packet)
            except OSError:
                self._dropped += 1

    def _execute(self) -> None:
        message, fds = kernel.receive_descriptors(self._control)
        if not message:  # the host has died
            self._stop = True
            return
        order: dict[str, Any] = json.loads(message)
        match order["do"]:
            case "add":
                self._add(order, fds[0])
            case "cut":
                self._cut.add(order["index"])
            case "remove":
                self._remove(order["index"])
            case "stop":
                self._stop = True
        self._control.send(b"done")

    def _add(self, order: dict[str, Any], fd: int) -> None:
        index = order["index"]
        self._shaper.add(index, Node(order["name"], order["kind"], order["location"]))
        self._links[index] = open_link(order["link"], fd, bytes.fromhex(order["mac"]), order["mtu"])
        self._index_of[self._links[index].fileno()] = index
        self._watched.append(self._links[index].fileno())
        self._names[index], self._ips[order["ip"]] = order["name"], order["name"]

    def _remove(self, index: int) -> None:
        """Remove the link of a node that has ended; its counters stay."""
        self._cut.add(index)
        link = self._links.pop(index, None)
        if link is not None:
            self._watched.remove(link.fileno())
            del self._index_of[link.fileno()]
            link.close()

    def report(self) -> dict[str, Any]:
        """The counters in the form of switch.json. Times are seconds, sizes bytes of whole IP packets."""
        return {
            "t": time.time(),
            "nodes": self._ips,
            "sent_bytes": self._sent_by_name(),
            "classes": self._classes(),
            "packets": self._packets,
            "dropped": self._dropped,
            **self._lateness.report(),
            "spells": [
                [*spell.pair, round(spell.begins_s + self._zero_s, 3), round(spell.lasts_s, 3)]
                for spell in self._shaper.spells(time.monotonic())
            ],
            "cpu_s": time.process_time(),
            "sleep_worst_s": self._probe.worst_s,
            "sleep_over_10ms_share": self._probe.over_10ms_share,
        }

    def _sent_by_name(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (a, b), n in self._sent.items():
            pair = f"{self._names[a]}>{self._names[b]}"
            found[pair] = found.get(pair, 0) + n  # successive monitors have the same name
        return found

    def _classes(self) -> dict[str, int]:
        found = {"peer": 0, "store": 0, "monitor": 0}
        for (a, b), n in self._sent.items():
            ends = {self._names[a], self._names[b]}
            found["monitor" if "monitor" in ends else "store" if "store" in ends else "peer"] += n
        return found

    def _write_report(self) -> None:
        fresh = self._report_path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(self.report()))
            os.replace(fresh, self._report_path)
        except OSError as error:  # a full disk must not stop the network; the report's age shows it
            os.write(2, f"switch: cannot write {self._report_path}: {error}\n".encode())
