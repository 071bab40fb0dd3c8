"""Check a VM's price against its ceiling, before a request and again after renting. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from cloud.provider import LaunchRequest, NoCapacityError
from cloud.sky.records import VmRecord

REMEMBERED_S = 3600.0
"""Seconds after which a place is tried again where a VM was rented and ended for its price: prices change."""


class PriceCeilingError(NoCapacityError):
    """A VM was rented but costs more than its price ceiling."""


def refusal_before(request: LaunchRequest, usd_per_h: Decimal | None, source: str) -> str:
    """Return why nothing is requested at a catalog's price, as a sentence without a full stop, or "".

    `usd_per_h` None: the catalog has no price, and `source` says why; `source` "": it has no such VM.
    """
    ceiling, offer = request.max_usd_per_h, request.offer
    if ceiling is None or (usd_per_h is not None and usd_per_h <= ceiling):
        return ""
    what = f"{_named(offer.instance)}{offer.accelerator} {_market(request)}"
    if usd_per_h is None:
        if not source:
            return ""  # SkyPilot itself refuses VMs that it does not find, without renting anything
        found = f"{source}, so the ceiling of ${ceiling}/h for {what} cannot be enforced"
    else:
        found = f"{what} costs ${usd_per_h}/h ({source}), more than its ceiling of ${ceiling}/h"
    planned = "no price" if offer.usd_per_h is None else f"${offer.usd_per_h}/h"
    provider = offer.location.partition("/")[0]
    return (
        f"{found}; the plan assumed {planned} ({offer.price_source or 'no source'}); nothing was requested. `orch prices "
        f"--books` lists the price books, `orch prices --book NAME --provider {provider} --product vm` their prices; "
        "run `orch plan` again to plan with SkyPilot's catalog, which is now on this machine"
    )


def refusal_remembered(request: LaunchRequest, records: Iterable[VmRecord], now_s: float) -> str:
    """Return why nothing is requested where a VM exceeded the ceiling within the last `REMEMBERED_S` seconds, or ""."""
    ceiling, offer = request.max_usd_per_h, request.offer
    if ceiling is None:
        return ""
    for record in records:
        same = (record.asked, record.accelerator, record.use_spot) == (
            offer.location,
            offer.accelerator,
            offer.use_spot,
        )
        if not same or not record.too_dear or record.ended_at_s is None:
            continue
        if now_s - record.ended_at_s >= REMEMBERED_S:
            continue
        if record.usd_per_h and Decimal(record.usd_per_h) <= ceiling:
            continue
        price = f"${record.usd_per_h}/h" if record.usd_per_h else "an unknown price"
        ago_s = now_s - record.ended_at_s
        return (
            f"{record.vm} was rented there at {price} and ended {ago_s:.0f} s ago, above the ceiling of ${ceiling}/h; "
            f"the place is tried again {REMEMBERED_S / 60:.0f} minutes after that"
        )
    return ""


def refusal_after(
    request: LaunchRequest, instance: str, where: str, usd_per_h: Decimal | None
) -> PriceCeilingError | None:
    """Return the error for a VM that was rented in `where`, or None if its price is within the ceiling."""
    ceiling = request.max_usd_per_h
    if ceiling is None or (usd_per_h is not None and usd_per_h <= ceiling):
        return None
    found = "its price is unknown" if usd_per_h is None else f"it costs ${usd_per_h}/h"
    return PriceCeilingError(
        f"{request.vm} at {request.offer.location}: SkyPilot rented {instance} in {where}, but {found} and the plan's "
        f"ceiling is ${ceiling}/h; it was ended again"
    )


def _named(instance: str) -> str:
    return "" if instance in ("", "unknown", "emulated") else f"{instance} with "


def _market(request: LaunchRequest) -> str:
    return "spot" if request.offer.use_spot else "on demand"
