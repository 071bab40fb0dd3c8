"""What runs have spent on VMs, to the second: the current price times the time, in all places at once."""

from __future__ import annotations

from decimal import Decimal

_HOUR = Decimal(3600)


class _Bill:
    """The bill of one run: dollars until `at_s`, and dollars per hour from then on."""

    __slots__ = ("at_s", "burn", "spent", "spot", "vm_s", "vms")

    def __init__(self, at_s: float) -> None:
        self.spent = self.burn = Decimal(0)
        self.vm_s = 0.0
        self.vms = 0
        self.at_s = at_s
        self.spot: dict[str, int] = {}  # spot VMs by location, whose price changes

    def until(self, at_s: float) -> None:
        passed_s = at_s - self.at_s
        if passed_s > 0:
            self.spent += self.burn * Decimal(repr(passed_s)) / _HOUR
            self.vm_s += self.vms * passed_s
            self.at_s = at_s


class Meter:
    """Accumulates the costs of all runs. Every change is O(1) in the number of VMs."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._bills: dict[str, _Bill] = {}
        self._prices: dict[str, Decimal] = {}  # current spot prices by location

    def began(self, run: str, location: str, usd_per_h: Decimal, spot: bool, at_s: float) -> None:
        """Start billing a VM."""
        bill = self._bills.setdefault(run, _Bill(at_s))
        bill.until(at_s)
        bill.burn += usd_per_h
        bill.vms += 1
        if spot:
            self._prices[location] = usd_per_h
            bill.spot[location] = bill.spot.get(location, 0) + 1

    def ended(self, run: str, location: str, usd_per_h: Decimal, spot: bool, at_s: float) -> None:
        """Stop billing a VM."""
        bill = self._bills[run]
        bill.until(at_s)
        bill.burn -= usd_per_h
        bill.vms -= 1
        if spot:
            bill.spot[location] -= 1

    def price(self, location: str, usd_per_h: Decimal, at_s: float) -> None:
        """Change the spot price of a location."""
        before = self._prices.get(location)
        self._prices[location] = usd_per_h
        if before is None:
            return
        for bill in self._bills.values():
            count = bill.spot.get(location, 0)
            if count:
                bill.until(at_s)
                bill.burn += count * (usd_per_h - before)

    def spent(self, run: str, at_s: float) -> tuple[Decimal, Decimal]:
        """Dollars that a run has spent until `at_s`, and dollars per hour now."""
        bill = self._bills.get(run)
        if bill is None:
            return Decimal(0), Decimal(0)
        bill.until(at_s)
        return bill.spent, bill.burn

    def vm_hours(self, run: str, at_s: float) -> float:
        """VM-hours for which a run was billed until `at_s`."""
        bill = self._bills.get(run)
        if bill is None:
            return 0.0
        bill.until(at_s)
        return bill.vm_s / 3600.0
