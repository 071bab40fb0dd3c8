"""How long a peer may go on without hearing from its controller. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable


class Lease:
    """A lease on the holder's own monotonic clock, whatever the giver's clock says.

    It runs from the moment at which its orders were given, as the holder reckons it: the orders it began with were given when
    it began, later ones as much later as the giver says, but never before the ones already known and never after their
    receipt. So no orders extend it by more than their length from receipt, and orders that are heard late (the holder
    was cut off) extend it by what is left of them.
    """

    def __init__(self, lease_s: float, issued_s: float, ticks_s: Callable[[], float]) -> None:
        """`lease_s`: the longest that any orders give; `issued_s`: when the first were given, by the giver's clock;
        `ticks_s`: the holder's clock, now the moment at which it begins."""
        self._ticks_s, self._longest_s, self._lease_s = ticks_s, lease_s, lease_s
        self._given_ticks, self._issued_s = ticks_s(), issued_s

    def received(self, lease_s: float, issued_s: float) -> None:
        """Newer orders came, given `issued_s` by the giver's clock."""
        later_s = max(0.0, issued_s - self._issued_s)
        self._given_ticks = min(self._ticks_s(), self._given_ticks + later_s)
        self._issued_s, self._lease_s = issued_s, min(lease_s, self._longest_s)

    def left_s(self) -> float:
        """Seconds to its end; negative: it is over."""
        return self._given_ticks + self._lease_s - self._ticks_s()
