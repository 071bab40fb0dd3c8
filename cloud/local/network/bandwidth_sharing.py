"""How streams share a VM and a path: the current rate of each pair of VMs, derived from recent traffic of all pairs."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from cloud.local.network.slowdowns import Spells
from cloud.networks import Path, PathModel

Pair = tuple[int, int]  # (source, target)

_TICKS = 4  # parts in which the counts of the last second are kept
# A pair counts as busy above this share of one stream on the slowest path, both directions together. At bytes_scale 100,
# eight peers that only report use a tenth to a fifth per direction (control traffic is not scaled); in an averaging round a
# pair uses the whole, in a slow spell 0.43.
_BUSY_SHARE = 0.4


class LastingSpell(NamedTuple):
    """A slow spell that has begun: names of the two VMs; seconds on the switch's clock."""

    pair: tuple[str, str]
    begins_s: float
    lasts_s: float


class Sharing:
    """Tracks which pairs of VMs in different places exchange data; pairs in one place are counted but never slowed.

    A stream's rate is window / (RTT + hold x (k - 1)), where k is the number of VMs with which the busier end exchanged
    data in the last second; in a slow spell, it is multiplied by `spell_factor`. The window and the threshold for busy
    pairs shrink by `bytes_scale` with the streams; RTT, hold, the second and the spells are times and shrink by
    `time_scale`.
    """

    def __init__(
        self, model: PathModel, bytes_scale: float, time_scale: float, seed: str, run_id: str
    ) -> None:
        """Spells are drawn from `seed` and the VMs' names without `run_id`, so runs with the same seed get the same ones."""
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
        """Add one direction of a pair of VMs in two places; the other direction is added separately."""
        self._far[pair] = path
        if (pair[1], pair[0]) not in self._spells:
            a, b = (name.removeprefix(self._prefix) for name in names)
            self._spells[pair] = (names, Spells(self._seed, (a, b), self._model, self._time_scale))
        slowest_bps = min(map(self._model.stream_bps, self._far.values()))
        self._busy_bytes = _BUSY_SHARE * slowest_bps / 8 * self._scale / self._time_scale

    def carried(self, pair: Pair, payload_bytes: int) -> None:
        """Count a packet sent between two VMs."""
        self._now[pair] += payload_bytes

    def tick(self, now_s: float) -> dict[Pair, float]:
        """Return the current rate of a stream of each watched pair, in bits/s at full scale.

        Call it every `tick_s`, or with the first packet after that. `now_s`: seconds since the switch started.
        """
        self._second.append(self._now)
        if now_s - self._ticked_s > _TICKS * self.tick_s:
            self._second.clear()  # nothing was sent for over a second
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
        """Number of VMs with which each VM exchanged data in the last second."""
        carried: Counter[Pair] = Counter()
        for part in self._second:
            for (a, b), size in part.items():
                carried[min(a, b), max(a, b)] += size
        return Counter(end for pair, size in carried.items() if size >= self._busy_bytes for end in pair)

    def spells(self, now_s: float) -> list[LastingSpell]:
        """All slow spells that have begun."""
        return [
            LastingSpell(names, begins_s, ends_s - begins_s)
            for names, spells in self._spells.values()
            for begins_s, ends_s in spells.begun(now_s)
        ]
