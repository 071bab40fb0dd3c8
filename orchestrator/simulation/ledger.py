"""What the controller knows of its spending: every VM it ever wished for, from the wish until it is seen ended."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["Ledger"]

_HOUR = Decimal(3600)


class Ledger:
    """An upper bound, at ceilings and by the controller's own clock. Survives the controller, as run.db does."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[float, Decimal]] = {}
        self._doubtful: dict[str, tuple[float, Decimal, Decimal]] = {}  # and what it was counted as
        self._closed_usd = self._burn = self._burn_times_began = Decimal(0)

    def wished(self, vm: str, usd_per_h: Decimal, at_s: float) -> None:
        """A VM may be billed from now on."""
        if vm not in self._open:
            self._add(vm, at_s, usd_per_h)

    def refused(self, vm: str) -> None:
        """The provider says that there is none."""
        if vm in self._open:
            self._doubtful[vm] = (*self._remove(vm), Decimal(0))

    def absent(self, vm: str, at_s: float) -> None:
        """Nobody wishes for it any more, and the provider does not list it."""
        if vm in self._open:
            self._doubtful[vm] = self._close(vm, at_s)

    def seen(self, vm: str) -> None:
        """The provider shows it alive: whoever said that there is none was wrong."""
        if vm in self._doubtful:
            began_s, usd_per_h, counted = self._doubtful.pop(vm)
            self._closed_usd -= counted
            self._add(vm, began_s, usd_per_h)

    def ended(self, vm: str, at_s: float) -> None:
        """It is billed no more."""
        self.seen(vm)
        if vm in self._open:
            self._close(vm, at_s)

    def _close(self, vm: str, at_s: float) -> tuple[float, Decimal, Decimal]:
        began_s, usd_per_h = self._remove(vm)
        usd = usd_per_h * Decimal(repr(max(0.0, at_s - began_s))) / _HOUR
        self._closed_usd += usd
        return began_s, usd_per_h, usd

    def _add(self, vm: str, began_s: float, usd_per_h: Decimal) -> None:
        self._open[vm] = (began_s, usd_per_h)
        self._burn += usd_per_h
        self._burn_times_began += usd_per_h * Decimal(repr(began_s))

    def _remove(self, vm: str) -> tuple[float, Decimal]:
        began_s, usd_per_h = self._open.pop(vm)
        self._burn -= usd_per_h
        self._burn_times_began -= usd_per_h * Decimal(repr(began_s))
        return began_s, usd_per_h

    def open(self) -> list[str]:
        """VMs that are billed as far as we know."""
        return list(self._open)

    def spent(self, now_s: float) -> tuple[Decimal, Decimal]:
        """Dollars until now, and dollars an hour now."""
        running = self._burn * Decimal(repr(now_s)) - self._burn_times_began
        return self._closed_usd + running / _HOUR, self._burn
