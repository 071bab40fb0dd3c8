"""The most that peers can train on a timeline, if capacities are known in advance. Pure.

The optimum over all choices of places and times: when to ask for a VM, where, when to leave it, and which VM is lost
when a place's capacity falls. Each request costs the same restart time. It is the maximum of

    sum over places and segments of (VMs x seconds) - restart_s x requests,

with at most the capacity of VMs at a place and at most one VM a peer. A VM that would live no longer than a restart
adds nothing, so it is never requested. Requests between two changes of capacity cannot be better than at the first of
them. That is a flow of maximum gain through a network in time (one node for "no VM" and one for each place at each
change), which has an integral optimum: as many paths of greatest gain as there are peers, each found by Dijkstra's
algorithm with potentials. For one peer the first path is the answer.
"""

from __future__ import annotations

import heapq
import math

from analysis.spot.timeline import Timeline, segments


def oracle_s(line: Timeline, *, peers: int, restart_s: float) -> float:
    """The greatest training time of all peers together, in seconds."""
    network = _Network(line, peers, restart_s)
    gained_s, left = 0.0, peers
    distances = network.first_distances()
    while left:
        path, distances = network.cheapest(distances)
        gain_s = -distances[network.sink]
        if gain_s <= 0:
            break
        count = min(left, *(network.room[edge] for edge in path))
        for edge in path:
            network.room[edge] -= count
            network.room[edge ^ 1] += count
        gained_s += gain_s * count
        left -= count
    return gained_s


class _Network:
    """Edges come in pairs: 2n, and its reverse 2n + 1. Costs are seconds not gained, so a gain is negative.

    Node `k * (places + 1)` is "no VM" at the k-th time, the next ones are the places.
    """

    def __init__(self, line: Timeline, peers: int, restart_s: float) -> None:
        self._width = len(line.places) + 1
        stretches = segments(line)
        self.to: list[int] = []
        self.room: list[int] = []
        self.cost: list[float] = []
        self.sink = len(stretches) * self._width
        self.edges: list[list[int]] = [[] for _ in range(self.sink + self._width)]
        for k, (begins_s, ends_s, capacity) in enumerate(stretches):
            free = k * self._width
            self._add(free, free + self._width, peers, 0.0)
            for n, count in enumerate(capacity, 1):
                if count:
                    self._add(free, free + n, peers, restart_s)
                    self._add(free + n, free + self._width + n, min(count, peers), begins_s - ends_s)
                    self._add(free + self._width + n, free + self._width, peers, 0.0)

    def _add(self, start: int, end: int, room: int, cost: float) -> None:
        for a, b, r, c in ((start, end, room, cost), (end, start, 0, -cost)):
            self.edges[a].append(len(self.to))
            self.to.append(b)
            self.room.append(r)
            self.cost.append(c)

    def first_distances(self) -> list[float]:
        """Smallest cost from the start to each node, in the order of time."""
        found = [math.inf] * len(self.edges)
        found[0] = 0.0
        for first in range(0, len(found), self._width):
            # What arrived by a place may leave it; leaving it and asking again only costs.
            for node in (
                *range(first + 1, first + self._width),
                first,
                *range(first + 1, first + self._width),
            ):
                for edge in self.edges[node]:
                    if self.room[edge]:
                        end = self.to[edge]
                        found[end] = min(found[end], found[node] + self.cost[edge])
        return found

    def cheapest(self, potentials: list[float]) -> tuple[list[int], list[float]]:
        """The path of the smallest cost to the last "no VM", and the distances of all nodes.

        `potentials`: the distances before the last path was taken. A node that cannot be reached stays so.
        """
        reduced = [math.inf] * len(self.edges)
        reduced[0] = 0.0
        by: list[int] = [-1] * len(self.edges)
        heap = [(0.0, 0)]
        while heap:
            at, node = heapq.heappop(heap)
            if at > reduced[node]:
                continue
            for edge in self.edges[node]:
                if not self.room[edge]:
                    continue
                end = self.to[edge]
                # Rounding may make a reduced cost of 0 a little negative.
                further = at + max(0.0, self.cost[edge] + potentials[node] - potentials[end])
                if further < reduced[end]:
                    reduced[end], by[end] = further, edge
                    heapq.heappush(heap, (further, end))
        path: list[int] = []
        node = self.sink
        while node:
            path.append(by[node])
            node = self.to[by[node] ^ 1]
        return path, [r + p if math.isfinite(r) else p for r, p in zip(reduced, potentials, strict=True)]
