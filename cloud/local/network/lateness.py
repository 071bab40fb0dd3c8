"""How late the switch delivers packets: since its start, and by second for the last hour."""

from __future__ import annotations

from collections import deque
from typing import Any

LATE_EDGES_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 1e9)
KEPT_S = 3600  # seconds kept individually: longer than the epochs of any emulated run, at most 200 kB of JSON
_LATE_S = 0.01


class Lateness:
    """Statistics of delivered packets. `note` is called for each packet, so it does little."""

    def __init__(self, unix_at_zero_s: float, kept_s: int = KEPT_S) -> None:
        """`unix_at_zero_s`: unix time at which the clock passed to `note` was 0."""
        self._zero_s, self._kept_s = unix_at_zero_s, kept_s
        self._counts = [0] * len(LATE_EDGES_MS)
        self._worst_s = 0.0
        self._over = 0
        self._second = -1
        self._seconds: deque[list[Any]] = deque()  # [unix second, packets, over 10 ms late, worst lateness s]

    def note(self, now_s: float, due_s: float) -> None:
        """Record that a packet due at `due_s` was delivered at `now_s`, both on the switch's clock."""
        late_s = now_s - due_s
        second = int(now_s + self._zero_s)
        if second != self._second:
            self._second = second
            self._seconds.append([second, 0, 0, 0.0])
            while self._seconds[0][0] <= second - self._kept_s:
                self._seconds.popleft()
        row = self._seconds[-1]
        row[1] += 1
        if late_s > _LATE_S:
            row[2] += 1
            self._over += 1
        if late_s > row[3]:
            row[3] = late_s
            self._worst_s = max(self._worst_s, late_s)
        for k, edge in enumerate(LATE_EDGES_MS):
            if late_s * 1e3 <= edge:
                self._counts[k] += 1
                break

    def report(self) -> dict[str, Any]:
        """The lateness part of switch.json. Seconds without packets have no row in `by_second`."""
        total = sum(self._counts)
        return {
            "late": {
                ("inf" if edge == 1e9 else f"{edge:g}"): n
                for edge, n in zip(LATE_EDGES_MS, self._counts, strict=True)
            },
            "late_worst_s": self._worst_s,
            "late_over_10ms_share": self._over / total if total else 0.0,
            "by_second": [[s, packets, late, round(worst, 6)] for s, packets, late, worst in self._seconds],
        }
