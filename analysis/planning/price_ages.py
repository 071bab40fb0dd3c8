"""Prices that a plan rests on and that are old: a warning with the age of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from cloud.prices.book import names_of
from cloud.prices.rows import Price

OLD_DAYS = 90
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class OldPrice:
    """A row of a price book that is older than `OLD_DAYS`, and the places whose VMs it prices."""

    price: Price
    age_days: int
    places: tuple[str, ...] = ()
    capped: bool = False  # all of these places have a limit of their own

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        provider, product, src, dst, item = self.price.key
        return {
            "provider": provider,
            "product": product,
            "from": src,
            "to": dst,
            "item": item,
            "valid_from": self.price.valid_from.isoformat(),
            "age_days": self.age_days,
            "row": self.price.origin,
        }


def old_prices(
    vms: Mapping[Price, Mapping[str, bool]], traffic: Sequence[Price], today: date
) -> tuple[OldPrice, ...]:
    """Return the rows older than `OLD_DAYS`, the oldest first.

    `vms`: by the row that prices a VM, the places where it is rented, and whether they have a `max_usd_per_h`.
    """
    found = [OldPrice(price, (today - price.valid_from).days) for price in traffic]
    found += [
        OldPrice(price, (today - price.valid_from).days, tuple(places), all(places.values()))
        for price, places in vms.items()
    ]
    old = [each for each in found if each.price.origin and each.age_days > OLD_DAYS]
    return tuple(sorted(old, key=lambda each: (-each.age_days, each.price.key)))


def warnings_of(old: Sequence[OldPrice], prices: str, tolerance: Decimal, *, rented: bool) -> list[str]:
    """Return a sentence for each old price of a VM, and one for all of traffic.

    `prices`: the experiment's `prices`. `tolerance`: VMs dearer than planned by more than this share are refused.
    """
    vms = [each for each in old if each.price.product == "vm"]
    traffic = [each for each in old if each.price.product != "vm"]
    warnings = [_vm(each, prices, tolerance, rented=rented) for each in vms]
    if traffic:
        shown = "; ".join(_row(each) for each in traffic[:_SHOWN])
        more = f"; {len(traffic) - _SHOWN} more" if len(traffic) > _SHOWN else ""
        count = f"{len(traffic)} prices of traffic are" if len(traffic) > 1 else "1 price of traffic is"
        warnings.append(
            f"{count} older than {OLD_DAYS} days: {shown}{more}; write newer ones {own_rows_go(prices)}"
        )
    return warnings


def own_rows_go(prices: str) -> str:
    """Say into which file rows go that count before those of an experiment's `prices`."""
    last = names_of(prices)[-1]
    if last.endswith(".csv"):
        return f"into {last}"
    return f"into mine.csv, used with `--set prices={prices},mine.csv`"


def _vm(old: OldPrice, prices: str, tolerance: Decimal, *, rented: bool) -> str:
    accelerator, _, market = old.price.item.split("/")
    kind = "spot" if market == "spot" else "on-demand"
    found = (
        f"the {kind} price of {accelerator} at {', '.join(old.places)} is {_age(old)} ({old.price.origin})"
    )
    if old.capped or not rented:
        return f"{found}; write a newer one {own_rows_go(prices)}"
    return (
        f"{found}, and VMs more than {float(tolerance):.0%} above it are refused, even if that is today's price: "
        f"write today's price {own_rows_go(prices)}, set max_usd_per_h of the place, or raise --price-tolerance; once "
        "SkyPilot's catalog is on this machine, its price counts instead"
    )


def _row(old: OldPrice) -> str:
    provider, product, src, dst, item = old.price.key
    what = f"{provider} {product} {item}" if item != "*" else f"{provider} {product}"
    ends = f" from {src} to {dst}" if (src, dst) != ("*", "*") else ""
    return f"{what}{ends}, {_age(old)} ({old.price.origin})"


def _age(old: OldPrice) -> str:
    return f"of {old.price.valid_from}, {old.age_days:,} days old"
