"""When a packet is due at its destination: the whole emulation of distance, without socket or clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloud.networks import Network, NetworkError, Path

__all__ = ["STORE_STREAM_BPS", "Node", "NodeKind", "Shaper"]

NodeKind = Literal["vm", "store", "monitor"]

# Training data is not byte-scaled (the emulated model's samples are small anyway), so streams to and from
# the store run at the network's own rate, but never above this: beyond it a Python switch on a small
# machine, not the path, would set the pace of everything else.
STORE_STREAM_BPS = 50e6
_FORGET_ABOVE = 4096  # streams remembered before the idle ones are dropped


@dataclass(frozen=True)
class Node:
    """One end of the emulated network."""

    name: str
    kind: NodeKind
    location: str | None  # None: nowhere in particular, no distance to anyone


@dataclass
class _Route:
    delay_s: float
    s_per_stream_byte: float  # 0: the stream is not paced
    s_per_sent_byte: float  # 0: the sender is not paced


class Shaper:
    """Delay of each pair (half its round trip), pace of each TCP stream and of each sending VM.

    A stream is paced by its payload at the network file's single-stream rate / bytes_scale: the file's
    figure is iperf's, which counts payload. Packets without payload (acknowledgements) are not held up behind
    the data of their direction: in the measured networks a window, not a queue, limits a stream, so nothing
    queues there. (Measured with data both ways on one connection, 103 ms, 2.1 Mb/s: 1.00 of the rate each way
    with buffers of 2 to 16 windows; with acknowledgements held up 0.87 to 0.97.) A VM's own limit counts
    whole packets, as a counter on its interface does. Traffic with the store is never scaled, traffic with
    the monitor never paced. With `time_scale` c everything is c times nearer and c times faster.
    """

    def __init__(self, network: Network, bytes_scale: float, time_scale: float, vm_bps: float) -> None:
        self._network, self._time_scale = network, time_scale
        self._stream_scale = time_scale / bytes_scale
        self._s_per_vm_byte = 8 / (vm_bps * self._stream_scale)
        self._nodes: dict[int, Node] = {}
        self._routes: dict[tuple[int, int], _Route] = {}
        self._sender_free: dict[int, float] = {}
        self._stream_free: dict[tuple[int, int, bytes], float] = {}

    def add(self, index: int, node: Node) -> None:
        """Make a node known. Raises NetworkError when the file says nothing of it and a node already here."""
        routes = {}
        for other_index, other in [*self._nodes.items(), (index, node)]:
            routes[index, other_index] = self._route(node, other)
            routes[other_index, index] = self._route(other, node)
        self._routes.update(routes)
        self._nodes[index] = node

    def _route(self, source: Node, target: Node) -> _Route:
        if source.location is None or target.location is None or source is target:
            path = Path(0.0, STORE_STREAM_BPS, "no place")
        else:
            path = self._measured(source, target)
        delay_s = path.rtt_s / 2 / self._time_scale
        kinds = {source.kind, target.kind}
        if "monitor" in kinds:
            return _Route(delay_s, 0.0, 0.0)
        if "store" in kinds:
            return _Route(delay_s, 8 / (min(path.stream_bps, STORE_STREAM_BPS) * self._time_scale), 0.0)
        return _Route(delay_s, 8 / (path.stream_bps * self._stream_scale), self._s_per_vm_byte)

    def _measured(self, source: Node, target: Node) -> Path:
        """The network's path. The store and the monitor may be where nobody measured: then without distance."""
        assert source.location is not None
        assert target.location is not None
        try:
            return self._network.path(source.location, target.location)
        except NetworkError:
            if source.kind == target.kind == "vm":
                raise
            return Path(0.0, STORE_STREAM_BPS, "not measured")

    def due(self, now: float, source: int, target: int, packet: bytes) -> float:
        """When `packet` (IPv4), sent at `now`, arrives. Unknown nodes raise KeyError."""
        route = self._routes[source, target]
        size = len(packet)
        header = (packet[0] & 15) * 4
        payload = size
        if packet[9] == 6:  # TCP
            payload = size - header - (packet[header + 12] >> 4) * 4
            if payload == 0 and packet[header + 13] == 0x10:  # nothing but an acknowledgement
                return now + route.delay_s
        start = now
        if route.s_per_sent_byte:
            start = max(start, self._sender_free.get(source, 0.0)) + size * route.s_per_sent_byte
            self._sender_free[source] = start
        if route.s_per_stream_byte:
            stream = (source, target, packet[header : header + 4])
            free = self._stream_free.get(stream)
            if free is None and len(self._stream_free) > _FORGET_ABOVE:
                self._forget(now)
            start = max(start, free or 0.0) + payload * route.s_per_stream_byte
            self._stream_free[stream] = start
        return start + route.delay_s

    def _forget(self, now: float) -> None:
        self._stream_free = {stream: free for stream, free in self._stream_free.items() if free > now}

    def known(self, index: int) -> bool:
        """Whether a node has this index."""
        return index in self._nodes
