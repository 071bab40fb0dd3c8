"""Whether a disturbed swarm went on as it should. Pure: from when each peer ended which epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Ends:
    """When (seconds on one clock) one peer was first seen to have ended each epoch."""

    at: dict[int, float] = field(default_factory=dict)
    began: tuple[int, float] | None = None  # the epoch it began with, and when it began to train

    def saw(self, epoch: int, now_s: float) -> None:
        """Its status says `epoch` now; what it skipped ended with it."""
        last = max(self.at, default=epoch - 1 if self.began is None else self.began[0])
        for number in range(last + 1, epoch + 1):
            self.at[number] = now_s

    def durations(self) -> dict[int, float]:
        """Seconds of each epoch whose beginning was seen too."""
        known = dict(self.at)
        if self.began is not None:
            known.setdefault(*self.began)
        return {number: end - known[number - 1] for number, end in self.at.items() if number - 1 in known}


@dataclass(frozen=True)
class Outage:
    """A peer could do nothing in between: its own epoch is so much longer; the others' must not be."""

    peer: str
    began_s: float
    ended_s: float


def expected_s(
    target_batch_size: int, step_samples: int, step_s: float, peers: int, communication_s: float
) -> float:
    """An epoch of so many equal peers: steps are whole, so one more may be needed, and then the round."""
    steps = -(-target_batch_size // (step_samples * max(1, peers)))
    return (steps + 1) * step_s + communication_s


def quiet_s(ends: Mapping[str, Ends], epochs: Iterable[int]) -> float | None:
    """Seconds of the shortest of those epochs, in the median over all peers; None: nobody ended one.

    The shortest: one whose first attempt failed must not loosen what is asked of all later ones.
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
    """The most by which an epoch that ended after `since_s` was longer than `due_s`, less the peer's own outages in it."""
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
