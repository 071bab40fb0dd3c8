"""Builds the VM rows of an imported run: place, instance and price, by the names and the price book."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from analysis.importers.wandb.bee import Bee
from analysis.importers.wandb.files import Log
from analysis.importers.wandb.words import UNKNOWN, Where, where
from cloud.prices.book import PriceBook
from metrics.records import VmRecord


def vm_rows(
    bees: Mapping[str, Bee], logs: Mapping[str, Log], book: PriceBook
) -> tuple[list[VmRecord], list[str]]:
    """Return a row per VM, and sentences on what is assumed or unknown."""
    rows: list[VmRecord] = []
    unplaced: dict[str, list[str]] = {}
    unpriced: dict[str, list[str]] = {}
    assumed: dict[str, list[str]] = {}
    on_demand: list[str] = []
    for vm, bee in bees.items():
        log = logs[vm]
        place = where(log.place)
        if place.location == UNKNOWN or place.cloud == "onprem":
            why = place.remark or f"{place.location} is not on the map"
            unplaced.setdefault(why, []).append(vm)
        elif place.remark:
            assumed.setdefault(place.remark, []).append(vm)
        instance, use_spot, usd, source = _price(place, log.gpu, book)
        if usd is None:
            unpriced.setdefault(
                f"{log.gpu or 'an unknown GPU'} at {place.cloud or 'an unknown cloud'}", []
            ).append(vm)
        elif not use_spot:
            on_demand.append(vm)
        rows.append(
            VmRecord(
                vm=vm,
                slot=vm,
                generation=0,
                location=place.location,
                instance=instance,
                accelerator=log.gpu or "",
                use_spot=use_spot,
                usd_per_h=usd,
                price_source=source,
                address=vm,
                requested_s=bee.first_s,
                ready_s=float(bee.end_s[0] - bee.timed_s[0]) if bee.steps else None,
                ended_s=bee.last_s,
                end_cause="",
            )
        )
    notes = [
        f"The place of {', '.join(vms)} is unknown ({why}), and so is the price of its bytes."
        for why, vms in unplaced.items()
    ]
    notes += [
        f"{', '.join(vms)}: {remark}; the log does not give the region." for remark, vms in assumed.items()
    ]
    notes += [f"{book.name} has no price for {what} ({', '.join(vms)})." for what, vms in unpriced.items()]
    if on_demand:
        notes.append(f"{', '.join(on_demand)}: on-demand price, because {book.name} has no spot price there.")
    if len(on_demand) + sum(map(len, unpriced.values())) < len(rows):
        notes.append("Spot prices are assumed: the logs do not say how the VMs were rented.")
    return rows, notes


def _price(place: Where, gpu: str | None, book: PriceBook) -> tuple[str, bool, Decimal | None, str]:
    """(instance, spot, $/h, source). Without a region a price that is the same in all regions of the cloud is used;
    without a spot price the on-demand price.
    """
    at = place.location if place.location != UNKNOWN else place.cloud
    if at is None or gpu is None:
        return "", True, None, ""
    for use_spot in (True, False):
        price = book.vm(at, gpu, use_spot)
        if price is not None:
            return price.instance, use_spot, price.usd, book.name
    return "", True, None, ""
