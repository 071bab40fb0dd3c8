"""Reference policies on a timeline: which share of the time peers train. Pure and event-driven.

The model: a peer needs one VM. A VM takes `restart_s` from its request until its peer trains, or until the request is
known to have failed. When a place's capacity falls below the VMs there, the youngest are lost. A peer leaves a VM
only by losing it, and asks for the next one at that moment. Nothing else takes time, and no price counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, get_args

from analysis.spot.oracle import oracle_s
from analysis.spot.timeline import Timeline, segments

Reference = Literal["pinned_to_best", "random_other", "any_up", "past_availability", "oracle"]
"""What a peer without a VM does.

`pinned_to_best`: waits for the one place that is the best in hindsight, the same for all peers;
`random_other`: asks at a place drawn from the others, whether or not it has room; if refused, draws again `restart_s` later;
`any_up`: asks at a place drawn from those that have room, at once or as soon as there is one;
`past_availability`: asks at the place, of those that have room, that had capacity for most of the time so far;
`oracle`: the most that any choice of places and times can reach (`analysis.spot.oracle`).
"""
REFERENCES: tuple[Reference, ...] = get_args(Reference)


def training_shares(line: Timeline, *, peers: int, restart_s: float, seed: int) -> dict[Reference, float]:
    """Share of the peers' time in training by reference policy. Raises ValueError for less than one peer."""
    return {
        name: training_share(line, name, peers=peers, restart_s=restart_s, seed=seed) for name in REFERENCES
    }


def training_share(line: Timeline, policy: Reference, *, peers: int, restart_s: float, seed: int) -> float:
    """Share of the peers' time in training, 0 to 1. `seed`: of the policies that draw. Raises ValueError."""
    if peers < 1 or restart_s < 0:
        raise ValueError("at least one peer, and a restart of 0 s or more")
    if policy == "oracle":
        trained_s = oracle_s(line, peers=peers, restart_s=restart_s)
    elif policy == "pinned_to_best":
        alone = [[place] for place in range(len(line.places))]
        trained_s = max(_Swarm(line, peers, restart_s, policy, seed, allowed).run() for allowed in alone)
    else:
        trained_s = _Swarm(line, peers, restart_s, policy, seed, range(len(line.places))).run()
    return trained_s / (peers * line.duration_s)


@dataclass
class _Swarm:
    """The peers of one policy. VMs of a place are in the order of their requests: (since when, peer)."""

    line: Timeline
    peers: int
    restart_s: float
    policy: Reference
    seed: int
    allowed: Sequence[int]
    trained_s: float = 0.0
    held: list[list[tuple[float, int]]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)  # by peer: where it was last, or was refused last
    waiting: set[int] = field(default_factory=set)  # peers that ask as soon as there is room
    asks: list[tuple[float, int]] = field(
        default_factory=list
    )  # heap of peers that ask at a time of their own
    up_s: list[float] = field(default_factory=list)  # by place: time with capacity so far

    def run(self) -> float:
        """Training time of all peers together, in seconds."""
        random = Random(f"reference {self.seed}")
        self.held = [[] for _ in self.line.places]
        self.up_s = [0.0 for _ in self.line.places]
        self.waiting = set(range(self.peers))
        for begins_s, ends_s, capacity in segments(self.line):
            for place, count in enumerate(capacity):
                while len(self.held[place]) > count:
                    since_s, peer = self.held[place].pop()
                    self._trained(since_s, begins_s)
                    self.last[peer] = place
                    self.waiting.add(peer)
            due = self.waiting | {peer for at_s, peer in self.asks if at_s == begins_s}
            self.asks = [each for each in self.asks if each[0] != begins_s]
            heapq.heapify(self.asks)
            self.waiting = set()
            for peer in sorted(due):
                self._ask(peer, begins_s, capacity, random)
            while self.asks and self.asks[0][0] < ends_s:
                at_s, peer = heapq.heappop(self.asks)
                self._ask(peer, at_s, capacity, random)
            for place, count in enumerate(capacity):
                self.up_s[place] += (ends_s - begins_s) if count else 0.0
        for vms in self.held:
            for since_s, _ in vms:
                self._trained(since_s, self.line.end_s)
        return self.trained_s

    def _trained(self, since_s: float, until_s: float) -> None:
        self.trained_s += max(0.0, until_s - since_s - self.restart_s)

    def _ask(self, peer: int, at_s: float, capacity: Sequence[int], random: Random) -> None:
        room = [place for place in self.allowed if len(self.held[place]) < capacity[place]]
        match self.policy:
            case "random_other":
                others = [place for place in self.allowed if place != self.last.get(peer)] or self.allowed
                chosen = random.choice(others)
                if chosen not in room:
                    self.last[peer] = chosen
                    again_s = at_s + self.restart_s
                    # Without a restart time it would ask at this moment forever.
                    if again_s > at_s:
                        heapq.heappush(self.asks, (again_s, peer))
                    else:
                        self.waiting.add(peer)
                    return
            case "past_availability":
                chosen = max(room, key=lambda place: (self.up_s[place], -place), default=None)
            case _:
                chosen = random.choice(room) if room else None
        if chosen is None:
            self.waiting.add(peer)
        else:
            self.held[chosen].append((at_s, peer))
