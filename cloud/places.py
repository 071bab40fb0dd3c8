"""All known places: clouds, their regions and zones, and the continent of each.

A *location* is written `cloud/region/zone`, or `cloud/region` if the cloud has no zones to choose from (Azure and Lambda
as SkyPilot rents them, Backblaze B2). `cloud/region` of a cloud with zones means any of its zones, in the data file's
order. Continents are those of the paper: US (North America), EU, ASIA, AUS, and SA (South America). A place of the cloud
`onprem` belongs to the user: peers run there, and nothing is rented.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DATA = Path(__file__).with_name("places.csv")


class PlaceError(Exception):
    """A location that does not exist or is not specific enough; the message lists the alternatives."""


@dataclass(frozen=True, slots=True)
class Place:
    """One row of places.csv."""

    cloud: str
    region: str
    zone: str  # "" if the cloud has no zones to choose from
    continent: str  # US, EU, ASIA, AUS, SA
    city: str
    rents_vms: bool  # False: an object store, or the user's own machines
    own: bool = False  # the user's own machines: not rented, not billed

    @property
    def location(self) -> str:
        """`cloud/region/zone`, or `cloud/region` without zones."""
        return "/".join(part for part in (self.cloud, self.region, self.zone) if part)


@cache
def places() -> tuple[Place, ...]:
    """All known places, in the data file's order."""
    with _DATA.open(newline="", encoding="utf-8") as file:
        return tuple(
            Place(
                r["cloud"],
                r["region"],
                r["zone"],
                r["continent"],
                r["city"],
                r["kind"] == "vm",
                r["kind"] == "own",
            )
            for r in csv.DictReader(file)
        )


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the closest candidate, or "" if none is close."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    if not close and len(word) >= 3:  # a truncated word is not similar enough to the whole one
        close = [name for name in by_lower if name.startswith(word.lower())][:1]
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


def expand(location: str) -> tuple[Place, ...]:
    """Return the places of a location: one for a zone, all zones for a region with zones.

    Raises PlaceError naming the first part that does not exist, the valid choices and the closest spelling.
    """
    parts = location.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise PlaceError(f"'{location}' is not a location: write cloud/region/zone, or cloud/region")
    cloud, region, zone = (*parts, "")[:3]
    clouds = _unique(p.cloud for p in places())
    if cloud not in clouds:
        raise PlaceError(f"'{cloud}' is not a cloud we know ({', '.join(clouds)}){nearest(cloud, clouds)}")
    of_cloud = [p for p in places() if p.cloud == cloud]
    of_region = [p for p in of_cloud if p.region == region]
    if not of_region:
        regions = _unique(p.region for p in of_cloud)
        near = nearest(region, regions)
        some = "" if near else f" (there are {_some(regions)})"
        raise PlaceError(f"'{region}' is not a region of {cloud}{some}{near}")
    if not zone:
        return tuple(of_region)
    zones = [p.zone for p in of_region if p.zone]
    if not zones:
        raise PlaceError(f"{cloud}/{region} has no zones to choose from; write '{cloud}/{region}'")
    if zone not in zones:
        near = nearest(zone, zones)
        raise PlaceError(f"'{zone}' is not a zone of {cloud}/{region} (there are {_some(zones)}){near}")
    return tuple(p for p in of_region if p.zone == zone)


def find(location: str) -> Place:
    """Return the place of a location; for a region with zones, its first zone. Raises PlaceError."""
    return expand(location)[0]


def continent(location: str) -> str:
    """US, EU, ASIA, AUS or SA. Raises PlaceError."""
    return find(location).continent


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _some(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
