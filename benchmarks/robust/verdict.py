"""Judge a disturbed swarm by the times at which its peers ended each epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Ends:
    """The times (seconds on one clock) at which a peer was first seen to have ended each epoch."""

    at: dict[int, float] = field(default_factory=dict)
    began: tuple[int, float] | None = None  # the epoch it started with, and when it started to train

    def saw(self, epoch: int, now_s: float) -> None:
        """Record that its status shows `epoch`; skipped epochs ended at the same time."""
        last = max(self.at, default=epoch - 1 if self.began is None else self.began[0])
        for number in range(last + 1, epoch + 1):
            self.at[number] = now_s

    def durations(self) -> dict[int, float]:
        """Seconds of each epoch whose start was also seen."""
        known = dict(self.at)
        if self.began is not None:
            known.setdefault(*self.began)
        return {number: end - known[number - 1] for number, end in self.at.items() if number - 1 in known}


@dataclass(frozen=True)
class Outage:
    """A period in which a peer was stopped; it may delay the peer's own epoch, but not those of others."""

    peer: str
    began_s: float
    ended_s: float


def expected_s(
    target_batch_size: int, step_samples: int, step_s: float, peers: int, communication_s: float
) -> float:
    """Expected seconds of an epoch of equal peers: whole steps, up to one more than needed, and communication."""
    steps = -(-target_batch_size // (step_samples * max(1, peers)))
    return (steps + 1) * step_s + communication_s


def quiet_s(ends: Mapping[str, Ends], epochs: Iterable[int]) -> float | None:
    """Seconds of the shortest of those epochs, each taken as the median over all peers; None if no peer ended one.

    The shortest is used so that an epoch whose first attempt failed does not relax the later limits.
    """
    lasted = [peer.durations() for peer in ends.values()]
    seconds = {n: [d[n] for d in lasted if n in d] for n in epochs}
    return min((median(all_) for all_ in seconds.values() if all_), default=None)


def lateness_s(
    ends: Mapping[str, Ends],
    peers: Sequence[str],
    since_s: float,
    due_s: float,
    outages: Sequence[Outage] = (),
) -> float:
    """The maximum by which an epoch that ended after `since_s` exceeded `due_s`, without the peer's own outages."""
    worst = 0.0
    for peer in peers:
        for number, seconds in ends[peer].durations().items():
            end = ends[peer].at[number]
            if end < since_s:
                continue
            own = (o for o in outages if o.peer == peer)
            out = sum(max(0.0, min(end, o.ended_s) - max(end - seconds, o.began_s)) for o in own)
            worst = max(worst, seconds - out - due_s)
    return worst
