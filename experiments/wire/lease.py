"""Lease of a peer: how long it may run without contact with its controller. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable

_RENEWALS = 4  # per lease


class Lease:
    """A lease measured on the holder's own monotonic clock, independent of the issuer's clock.

    It runs from the time at which its orders were issued, estimated on the holder's clock. The first orders are assumed to
    be issued when the lease is created. Later ones are later by the difference of their issue times on the issuer's clock,
    but never earlier than the previous orders and never later than their receipt. So no orders extend the lease by more
    than their length from receipt, and orders that arrive late (the holder was disconnected) extend it by what is left of
    their length.
    """

    def __init__(self, lease_s: float, issued_s: float, ticks_s: Callable[[], float]) -> None:
        """Start the lease now.

        `lease_s`: its length, and the maximum for later orders. `issued_s`: when the first orders were issued, by the
        issuer's clock. `ticks_s`: the holder's clock.
        """
        self._ticks_s, self._longest_s, self._lease_s = ticks_s, lease_s, lease_s
        self._issued_ticks, self._issued_s = ticks_s(), issued_s

    def received(self, lease_s: float, issued_s: float) -> None:
        """Renew the lease with newer orders, issued at `issued_s` by the issuer's clock."""
        later_s = max(0.0, issued_s - self._issued_s)
        self._issued_ticks = min(self._ticks_s(), self._issued_ticks + later_s)
        self._issued_s, self._lease_s = issued_s, min(lease_s, self._longest_s)

    def left_s(self) -> float:
        """Return the seconds until the lease ends; negative if it has ended."""
        return self._issued_ticks + self._lease_s - self._ticks_s()


class OrdersTime:
    """Schedule and issue times of orders, for an issuer that may be restarted with a different clock.

    Holders use the time between two orders. The time between the last orders of an earlier process and the first orders of
    this one is unknown, because the machine may have been restarted too. So the first orders are dated a whole lease
    later, which holders treat as "issued on receipt", and all following orders are ahead of the clock by the same amount.
    """

    def __init__(self) -> None:
        self._ahead_s: float | None = None  # of the clock; None: this process has not issued orders

    def due(self, clock_s: float, last_s: float, lease_s: float) -> bool:
        """Whether orders must be renewed. `last_s`: issue time of the last ones."""
        return not 0.0 <= clock_s + (self._ahead_s or 0.0) - last_s < lease_s / _RENEWALS

    def give(self, clock_s: float, last_s: float | None, lease_s: float) -> float:
        """Return the issue time for orders issued now. `last_s`: that of the last ones; None: there were none."""
        if self._ahead_s is None:
            self._ahead_s = 0.0 if last_s is None else max(0.0, last_s + lease_s - clock_s)
        return clock_s + self._ahead_s
