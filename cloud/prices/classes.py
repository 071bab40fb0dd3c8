"""Egress classes: the kinds of paths that providers price differently."""

from __future__ import annotations

import ipaddress
from functools import cache
from typing import Literal

from cloud.places import PlaceError, find
from cloud.vendors import VENDORS

CONTINENTS = ("US", "EU", "ASIA", "AUS", "SA")  # the paper's names, as in `cloud.places`

EgressClass = Literal[
    "same_zone",  # internal addresses inside one zone
    "same_zone_public",  # public addresses inside one zone, which clouds bill like two zones
    "inter_zone",  # two zones of one region
    "inter_region",  # two regions of one continent
    "inter_continent",  # two continents, neither of them Oceania
    "oceania",  # two continents, one of them Oceania
    "between_clouds",  # from one provider to another
    "internet",  # to anything outside the clouds that rent VMs
]
EGRESS_CLASSES: tuple[EgressClass, ...] = (
    "same_zone",
    "same_zone_public",
    "inter_zone",
    "inter_region",
    "inter_continent",
    "oceania",
    "between_clouds",
    "internet",
)

StoreClass = Literal[
    "same_region",  # a VM of the store's own region, whatever its zone
    "inter_region",
    "inter_continent",
    "oceania",
    "between_clouds",
    "internet",
]
STORE_CLASSES: tuple[StoreClass, ...] = (
    "same_region",
    "inter_region",
    "inter_continent",
    "oceania",
    "between_clouds",
    "internet",
)

_INTERNAL = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
INTERNET = "internet"  # the location of anything outside the clouds


@cache
def _place(location: str) -> tuple[str, bool, bool] | None:
    """(continent, rents VMs, is the user's own), or None for an unknown location."""
    try:
        place = find(location)
    except PlaceError:
        return None
    return place.continent, place.rents_vms, place.own


def is_own(location: str) -> bool:
    """Whether a machine there belongs to the user, so that nothing is billed."""
    place = _place(location)
    return place is not None and place[2]


def continent(location: str) -> str | None:
    """The continent of a location `cloud/region[/zone]`; None if the location is unknown."""
    place = _place(location)
    return place[0] if place else None


def is_internal(address: str) -> bool:
    """Whether an IP address is internal to a cloud's network; traffic to it is priced differently."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(ip.version == network.version and ip in network for network in _INTERNAL)


def network_of(location: str) -> str:
    """Return the network in which rented VMs reach each other at internal addresses, as SkyPilot sets it up.

    For example "aws/us-west-2"; "" if they share none, or none is known to be shared.
    """
    parts = location.split("/")
    vendor = VENDORS.get(parts[0])
    return "/".join(parts[:2]) if vendor and vendor.shares_network and len(parts) > 1 else ""


def egress_class(src: str, dst: str, *, public: bool = False) -> EgressClass | None:
    """Return the egress class of a byte sent from one location to another; None if a location is unknown.

    `public`: the byte is sent to a public address. This makes no difference between zones and regions.

    Locations are `cloud/region/zone`; the destination may be `INTERNET`. If a zone is missing on either side, the class
    inside one region is `inter_zone`, the more expensive one. A store outside the clouds that rent VMs (Backblaze B2)
    and the user's own machines are reached over the internet.
    """
    here = _place(src)
    if here is None or not (here[1] or here[2]):
        return None
    if dst == INTERNET:
        return "internet"
    there = _place(dst)
    if there is None:
        return None
    if not there[1] or here[2]:
        return "internet"
    src_parts, dst_parts = src.split("/"), dst.split("/")
    if src_parts[0] != dst_parts[0]:
        return "between_clouds"
    if src_parts[1] == dst_parts[1]:
        same = len(src_parts) == len(dst_parts) == 3 and src_parts[2] == dst_parts[2]
        if not same:
            return "inter_zone"
        return "same_zone_public" if public else "same_zone"
    if here[0] == there[0]:
        return "inter_region"
    return "oceania" if "AUS" in (here[0], there[0]) else "inter_continent"


def store_egress_class(store: str, dst: str) -> StoreClass | None:
    """The class of a byte that an object store sends; None when a place is not on the map.

    As `egress_class`, except that a store has no zone: inside its region there is one class, `same_region`.
    What a store outside the clouds that rent VMs (Backblaze B2, Cloudflare R2) sends is always `internet`.
    """
    here = _place(store)
    if here is not None and not (here[1] or here[2]):
        return "internet" if dst == INTERNET or _place(dst) else None
    kind = egress_class(store, dst)
    if kind in ("same_zone", "same_zone_public", "inter_zone"):
        return "same_region"
    return kind
