"""When a packet is due at its destination: the complete emulation of distance, without sockets or clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloud.local.network.bandwidth_sharing import LastingSpell, Sharing
from cloud.networks import NO_PATH_MODEL, Network, NetworkError, Path, PathModel

NodeKind = Literal["vm", "store", "monitor"]

# Training data is not byte-scaled (the emulated model's samples are small anyway), so streams to and from the store run at
# the network's own rate, but never faster than this: beyond it, on a small machine, the Python switch would limit
# everything instead of the path.
STORE_STREAM_BPS = 50e6
_FORGET_ABOVE = 4096  # streams remembered before the idle ones are dropped


@dataclass(frozen=True)
class Node:
    """One end of the emulated network."""

    name: str
    kind: NodeKind
    location: str | None  # None: no particular place, no distance to any node


@dataclass
class _Route:
    delay_s: float
    s_per_stream_byte: float  # 0: streams are not paced
    s_per_sent_byte: float  # 0: the sender is not paced
    # By how much data arrive later than by distance alone; None: not emulated this way.
    held_s: float | None = None


class Shaper:
    """Computes the delay of each pair (half its round trip) and the pacing of each TCP stream and of each sending VM.

    A stream is paced by its payload at the network file's single-stream rate / bytes_scale, since that rate is iperf's,
    which counts payload. Packets without payload (acknowledgements) do not queue behind data of their direction: in the
    measured networks a window, not a queue, limits a stream. (Measured with data in both directions on one connection,
    103 ms, 2.1 Mb/s: 1.00 of the rate in each direction with buffers of 2 to 16 windows; with queued acknowledgements
    0.87 to 0.97.) A VM's own limit counts whole packets, as an interface counter does. Traffic with the store is never
    scaled, traffic with the monitor never paced. With `time_scale` c everything is c times closer and c times faster.
    """

    def __init__(
        self,
        network: Network,
        bytes_scale: float,
        time_scale: float,
        vm_bps: float,
        *,
        paced: bool = True,
        model: PathModel = NO_PATH_MODEL,
        seed: str = "",
        run_id: str = "",
        began_s: float = 0.0,
    ) -> None:
        """`paced` False: streams between VMs are limited only by the VMs' own TCP windows.

        `model` applies to streams between two places (`Sharing`); its spells are drawn from `seed` and the VMs' names
        without `run_id`. `began_s` is the model's time 0 on the clock passed to `due`.
        """
        self._network, self._time_scale, self.paced = network, time_scale, paced
        self._stream_scale = time_scale / bytes_scale
        self._s_per_vm_byte = 8 / (vm_bps * self._stream_scale)
        self._nodes: dict[int, Node] = {}
        self._routes: dict[tuple[int, int], _Route] = {}
        self._sender_free: dict[int, float] = {}
        self._stream_free: dict[tuple[int, int, bytes], float] = {}
        self._model, self._began_s, self._next_tick_s = model, began_s, began_s
        self._sharing = None
        if model is not NO_PATH_MODEL:
            self._sharing = Sharing(model, bytes_scale, time_scale, seed, run_id)

    def add(self, index: int, node: Node) -> None:
        """Add a node. Raises NetworkError if the network has no path between it and a node already present."""
        routes = {}
        for other_index, other in [*self._nodes.items(), (index, node)]:
            routes[index, other_index] = self._route(node, other)
            routes[other_index, index] = self._route(other, node)
        self._routes.update(routes)
        if self._sharing and node.kind == "vm":
            for other_index, other in self._nodes.items():
                if other.kind == "vm" and self._far(node, other):
                    for pair, ends in (
                        ((index, other_index), (node, other)),
                        ((other_index, index), (other, node)),
                    ):
                        self._sharing.watch(pair, (ends[0].name, ends[1].name), self._measured(*ends))
            self._next_tick_s = self._began_s  # set the rates of its streams with the next packet
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
        pace = 8 / (path.stream_bps * self._stream_scale) if self.paced else 0.0
        return _Route(delay_s, pace, self._s_per_vm_byte)

    def _far(self, a: Node, b: Node) -> bool:
        """Whether two VMs are in two places of the network."""
        if a.location is None or b.location is None:
            return False
        return self._network.place(a.location) != self._network.place(b.location)

    def _measured(self, source: Node, target: Node) -> Path:
        """The network's path. The store and the monitor may be in a place that was not measured: then without distance."""
        assert source.location is not None
        assert target.location is not None
        try:
            return self._network.path(source.location, target.location)
        except NetworkError:
            if source.kind == target.kind == "vm":
                raise
            return Path(0.0, STORE_STREAM_BPS, "not measured")

    def due(self, now: float, source: int, target: int, packet: bytes) -> float:
        """Time at which `packet` (IPv4), sent at `now`, arrives. Raises KeyError for unknown nodes."""
        route = self._routes[source, target]
        size = len(packet)
        header = (packet[0] & 15) * 4
        payload = size
        if packet[9] == 6:  # TCP
            payload = size - header - (packet[header + 12] >> 4) * 4
            if payload == 0 and packet[header + 13] == 0x10:  # nothing but an acknowledgement
                return now + route.delay_s
        if self._sharing and route.s_per_sent_byte:
            if now >= self._next_tick_s:
                self._tick(now)
            self._sharing.carried((source, target), payload)
        start = now
        if route.s_per_sent_byte:
            start = max(start, self._sender_free.get(source, 0.0)) + size * route.s_per_sent_byte
            self._sender_free[source] = start
        if route.s_per_stream_byte or route.held_s is not None:
            stream = (source, target, packet[header : header + 4])
            free = self._stream_free.get(stream)
            if free is None and len(self._stream_free) > _FORGET_ABOVE:
                self._forget(now)
            start = max(start + (route.held_s or 0.0), free or 0.0) + payload * route.s_per_stream_byte
            self._stream_free[stream] = start
        return start + route.delay_s

    def _tick(self, now: float) -> None:
        """Set the rate of each pair of VMs in two places or, if unpaced, the delay that reduces a window to that rate."""
        assert self._sharing is not None
        for pair, bps in self._sharing.tick(now - self._began_s).items():
            route = self._routes[pair]
            if self.paced:
                route.s_per_stream_byte = 8 / (bps * self._stream_scale)
            else:
                alone_bps = self._model.stream_bps(self._measured(*(self._nodes[k] for k in pair)))
                route.held_s = 2 * route.delay_s * (alone_bps / bps - 1)
        self._next_tick_s = now + self._sharing.tick_s

    def spells(self, now: float) -> list[LastingSpell]:
        """The slow spells that began by `now`, on the clock of `now`."""
        found = self._sharing.spells(now - self._began_s) if self._sharing else []
        return [spell._replace(begins_s=spell.begins_s + self._began_s) for spell in found]

    def _forget(self, now: float) -> None:
        self._stream_free = {stream: free for stream, free in self._stream_free.items() if free > now}
