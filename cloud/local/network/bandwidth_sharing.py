"""How several streams share a VM and a path: the pace of each pair of VMs now, from what all pairs carried lately."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from cloud.local.network.slowdowns import Spells
from cloud.networks import Path, PathModel

Pair = tuple[int, int]  # (source, target)

_TICKS = 4  # a second's counts are kept in so many parts
# Of what one stream carries on the slowest path, both directions together. Eight peers that only report had a tenth to a fifth
# a direction at bytes_scale 100 (control traffic does not shrink); in a round a pair has the whole, in a slow spell 0.43.
_BUSY_SHARE = 0.4


class LastingSpell(NamedTuple):
    """A slow spell that has begun: names of the two VMs, seconds on the switch's clock."""

    pair: tuple[str, str]
    begins_s: float
    lasts_s: float


class Sharing:
    """Of the pairs in two places only; those in one place are counted, and never slowed.

    A stream's pace is window / (RTT + hold x (k - 1)), k being the VMs that the busier end exchanged data with
    in the last second, times `spell_factor` in a slow spell. What scales: the window and what counts as data
    shrink by `bytes_scale` with the streams; RTT, hold, the second and the spells are time and shrink by `time_scale`.
    """

    def __init__(
        self, model: PathModel, bytes_scale: float, time_scale: float, seed: str, run_id: str
    ) -> None:
        """Spells are drawn from `seed` and the VMs' names without `run_id`, so that runs of one seed have the same."""
        self._model, self._time_scale, self._seed, self._prefix = model, time_scale, seed, f"{run_id}-"
        self._scale = time_scale / bytes_scale
        self._far: dict[Pair, Path] = {}
        self._spells: dict[Pair, tuple[tuple[str, str], Spells]] = {}
        self._busy_bytes = 0.0
        self._now: Counter[Pair] = Counter()
        self._second: deque[Counter[Pair]] = deque(maxlen=_TICKS)
        self._ticked_s = 0.0
        self.tick_s = 1.0 / _TICKS / time_scale

    def watch(self, pair: Pair, names: tuple[str, str], path: Path) -> None:
        """Two VMs in two places (one direction; the other is told apart)."""
        self._far[pair] = path
        if (pair[1], pair[0]) not in self._spells:
            a, b = (name.removeprefix(self._prefix) for name in names)
            self._spells[pair] = (names, Spells(self._seed, (a, b), self._model, self._time_scale))
        slowest_bps = min(map(self._model.stream_bps, self._far.values()))
        self._busy_bytes = _BUSY_SHARE * slowest_bps / 8 * self._scale / self._time_scale

    def carried(self, pair: Pair, payload_bytes: int) -> None:
        """A packet between two VMs was sent."""
        self._now[pair] += payload_bytes

    def tick(self, now_s: float) -> dict[Pair, float]:
        """Every `tick_s`, or when a packet comes after it: bits/s (study scale) of a stream of each watched pair.

        `now_s`: seconds since the switch began.
        """
        self._second.append(self._now)
        if now_s - self._ticked_s > _TICKS * self.tick_s:
            self._second.clear()  # silence
        self._now, self._ticked_s = Counter(), now_s
        streams = self._streams()
        paces = {
            pair: self._model.stream_bps(path, max(streams[pair[0]], streams[pair[1]]))
            for pair, path in self._far.items()
        }
        for pair, (_, spells) in self._spells.items():
            if spells.slow(now_s):
                for way in (pair, (pair[1], pair[0])):
                    paces[way] *= self._model.spell_factor
        return paces

    def _streams(self) -> Counter[int]:
        """VMs that each VM exchanged data with in the last second."""
        carried: Counter[Pair] = Counter()
        for part in self._second:
            for (a, b), size in part.items():
                carried[min(a, b), max(a, b)] += size
        return Counter(end for pair, size in carried.items() if size >= self._busy_bytes for end in pair)

    def spells(self, now_s: float) -> list[LastingSpell]:
        """All that have begun."""
        return [
            LastingSpell(names, begins_s, ends_s - begins_s)
            for names, spells in self._spells.values()
            for begins_s, ends_s in spells.begun(now_s)
        ]
