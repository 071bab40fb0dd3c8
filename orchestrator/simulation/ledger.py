"""What the controller knows of its spending: every VM it ever wished for, from the wish until it is seen ended."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

_HOUR = Decimal(3600)
_BLIND_S = 120.0  # without a list for longer than this, any VM may cost its ceiling


@dataclass(frozen=True, slots=True)
class _Vm:
    began_s: float  # of the price below
    usd_per_h: Decimal
    ceiling: Decimal
    counted: Decimal = Decimal(0)  # for the time before


class Ledger:
    """At the prices last listed, by the controller's own clock; what is not known counts as the ceiling.

    Survives the controller, as run.db does. Every change costs O(1).
    """

    def __init__(self) -> None:
        self._open: dict[str, _Vm] = {}
        self._doubtful: dict[str, tuple[_Vm, Decimal]] = {}  # and what it was closed with
        self._closed_usd = self._burn = self._burn_times_began = self._ceilings = Decimal(0)
        self._heard_s = float("inf")

    def heard(self, at_s: float) -> None:
        """The provider listed its VMs."""
        self._closed_usd += self._blind(at_s)
        self._heard_s = at_s

    def wished(self, vm: str, ceiling: Decimal, at_s: float) -> None:
        """A VM may be billed from now on."""
        if vm not in self._open:
            self._add(vm, _Vm(at_s, ceiling, ceiling))

    def refused(self, vm: str) -> None:
        """The provider says that there is none."""
        if vm in self._open:
            self._doubtful[vm] = (self._remove(vm), Decimal(0))

    def absent(self, vm: str, at_s: float) -> None:
        """Nobody wishes for it any more, and the provider does not list it."""
        if vm in self._open:
            self._doubtful[vm] = self._close(vm, at_s)

    def seen(self, vm: str, usd_per_h: Decimal | None, at_s: float, before_s: float) -> None:
        """The provider shows it alive (whoever said that there is none was wrong), at this price, which may be
        the price since the list before."""
        if vm in self._doubtful:
            known, closed = self._doubtful.pop(vm)
            self._closed_usd -= closed
            self._add(vm, known)
        known = self._open.get(vm)
        if known is None or usd_per_h is None or usd_per_h == known.usd_per_h:
            return
        since_s = at_s if usd_per_h < known.usd_per_h else max(known.began_s, min(before_s, at_s))
        self._remove(vm)
        spent = known.counted + _usd(known.usd_per_h, since_s - known.began_s)
        self._add(vm, _Vm(since_s, usd_per_h, known.ceiling, spent))

    def ended(self, vm: str, at_s: float) -> None:
        """It is billed no more."""
        self.seen(vm, None, at_s, at_s)
        if vm in self._open:
            self._close(vm, at_s)

    def open(self) -> list[str]:
        """VMs that are billed as far as we know."""
        return list(self._open)

    def spent(self, now_s: float) -> tuple[Decimal, Decimal]:
        """Dollars until now, and dollars an hour now."""
        running = self._burn * Decimal(repr(now_s)) - self._burn_times_began
        return self._closed_usd + running / _HOUR + self._blind(now_s), self._burn

    def _blind(self, now_s: float) -> Decimal:
        silent_s = now_s - self._heard_s
        return _usd(self._ceilings - self._burn, silent_s) if silent_s > _BLIND_S else Decimal(0)

    def _close(self, vm: str, at_s: float) -> tuple[_Vm, Decimal]:
        known = self._remove(vm)
        usd = known.counted + _usd(known.usd_per_h, at_s - known.began_s)
        self._closed_usd += usd
        return known, usd

    def _add(self, vm: str, known: _Vm) -> None:
        self._open[vm] = known
        self._closed_usd += known.counted
        self._ceilings += known.ceiling
        self._burn += known.usd_per_h
        self._burn_times_began += known.usd_per_h * Decimal(repr(known.began_s))

    def _remove(self, vm: str) -> _Vm:
        known = self._open.pop(vm)
        self._closed_usd -= known.counted
        self._ceilings -= known.ceiling
        self._burn -= known.usd_per_h
        self._burn_times_began -= known.usd_per_h * Decimal(repr(known.began_s))
        return known


def _usd(usd_per_h: Decimal, seconds: float) -> Decimal:
    return usd_per_h * Decimal(repr(max(0.0, seconds))) / _HOUR
