"""How long a peer may go on without hearing from its controller. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable

_RENEWALS = 4  # a lease


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


class OrdersTime:
    """When orders are due, and the time they bear: of a giver that may be started anew, with another time of day.

    Holders reckon with the time between two orders. How long it was between the last orders of an earlier process and the first
    of this one nobody knows, since the machine may have started anew too: the first are a whole lease later, which counts as
    "from receipt", and all that follow are ahead of the clock by as much.
    """

    def __init__(self) -> None:
        self._ahead_s: float | None = None  # of the clock; None: this process has given none

    def due(self, clock_s: float, last_s: float, lease_s: float) -> bool:
        """Whether the last orders, which bear `last_s`, are to be given anew."""
        return not 0.0 <= clock_s + (self._ahead_s or 0.0) - last_s < lease_s / _RENEWALS

    def give(self, clock_s: float, last_s: float | None, lease_s: float) -> float:
        """The time that orders given now bear; `last_s`: that of the last ones, None: there were none."""
        if self._ahead_s is None:
            self._ahead_s = 0.0 if last_s is None else max(0.0, last_s + lease_s - clock_s)
        return clock_s + self._ahead_s
